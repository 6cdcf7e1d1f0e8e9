// All that is seen at a glance.

import { Events } from "./events.js";
import { duration } from "./format.js";
import { History } from "./history.js";
import { html } from "./html.js";
import { Memory } from "./memory.js";
import { Models } from "./models.js";
import { Pulls } from "./pulls.js";
import { Requests } from "./requests.js";
import { Meanings } from "./terms.js";
import { Troubles } from "./troubles.js";
import { Upstreams } from "./upstreams.js";

export function Overview({ live }) {
  const { status, requests, events } = live;
  return html`
    <p class="sum">The gateway is ${status.state}, for ${duration(status.uptime_s)}.</p>
    <${Troubles} status=${status} />
    <${History} status=${status} />
    <${Memory} status=${status} />
    <${Models} live=${live} />
    <${Upstreams} upstreams=${status.upstreams} />
    <${Requests} requests=${requests} models=${status.models} finished=${live.finished} />
    <${Pulls} models=${status.models} />
    <${Events} events=${events} />
    <${Meanings} />
  `;
}
