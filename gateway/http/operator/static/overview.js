// All that is seen at a glance.

import { Events } from "./events.js";
import { clock, duration } from "./format.js";
import { History, useHistory } from "./history.js";
import { shownModels } from "./history_numbers.js";
import { html, useRef } from "./html.js";
import { Memory } from "./memory.js";
import { coloured, sharers } from "./memory_shares.js";
import { Models } from "./models.js";
import { Pulls } from "./pulls.js";
import { Requests } from "./requests.js";
import { Meanings } from "./terms.js";
import { Troubles } from "./troubles.js";
import { Upstreams } from "./upstreams.js";

export function Overview({ live }) {
  const { status, requests, events } = live;
  const lost = live.connection === "lost" ? clock(live.seenAt) : null;
  const history = useHistory();
  const colours = useRef(new Map());
  const shown = [...(history.answer ? shownModels(history.answer, status) : []), ...sharers(status)];
  colours.current = coloured(colours.current, [...new Set(shown)]);
  return html`
    ${lost
      ? html`<p class="sum"><span class="bad">There is no connection to the gateway since ${lost}. All figures are of then.</span></p>`
      : html`<p class="sum">The gateway is ${status.state}, for ${duration(status.uptime_s)}.</p>`}
    <${Troubles} status=${status} />
    <${History} ...${history} status=${status} colours=${colours.current} lost=${lost} />
    <${Memory} status=${status} colours=${colours.current} />
    <${Models} live=${live} />
    <${Upstreams} upstreams=${status.upstreams} />
    <${Requests} requests=${requests} models=${status.models} finished=${live.finished} />
    <${Pulls} models=${status.models} />
    <${Events} events=${events} />
    <${Meanings} />
  `;
}
