// Markdown as elements. Each token of the library becomes an element or text, so nothing of an
// answer is ever HTML, and nothing of it is loaded.

import { Copy } from "./copy.js";
import { html, useMemo, useRef } from "./html.js";
import { lexer } from "./vendor/marked.js";

// Deeper ones are shown as they were written: a browser has an end to its stack.
const MOST_NESTED = 24;
const SAFE = ["http:", "https:", "mailto:"];
const NAMED = {
  amp: "&",
  lt: "<",
  gt: ">",
  quot: '"',
  apos: "'",
  nbsp: "\u00a0",
  ndash: "–",
  mdash: "—",
  hellip: "…",
  copy: "©",
  times: "×",
  deg: "°",
  euro: "€",
  larr: "←",
  rarr: "→",
};

const nothingDrawn = { settled: "", blocks: [], open: [] };

// `growing`: more of the text may come.
export function Markdown({ text, growing }) {
  const drawn = useRef(nothingDrawn);
  useMemo(() => {
    drawn.current = redrawn(growing ? drawn.current : nothingDrawn, text.replaceAll(/\r\n?/g, "\n"), growing);
  }, [text, growing]);
  return html`<div class="text markdown">${drawn.current.blocks}${drawn.current.open}</div>`;
}

// Of a growing text only the open blocks are read and drawn again, which are the last two: what
// comes may go on with a list behind a line that was none, yet nothing before that changes.
function redrawn(before, text, growing) {
  const known = text.startsWith(before.settled) ? before : nothingDrawn;
  const tokens = tokensOf(text.slice(known.settled.length));
  const filled = tokens.filter((each) => each.type !== "space");
  const end = growing ? tokens.indexOf(filled.at(-2) ?? filled[0]) : tokens.length;
  const settling = tokens.slice(0, Math.max(end, 0));
  const settled = known.settled + settling.map((each) => each.raw).join("");
  if (!text.startsWith(settled)) return { ...known, open: blocksOf(tokens) };
  return {
    settled,
    blocks: [...known.blocks, ...blocksOf(settling)],
    open: blocksOf(tokens.slice(settling.length)),
  };
}

function tokensOf(text) {
  try {
    return lexer(text, { gfm: true, breaks: true });
  } catch {
    // Thousands of quotes in quotes are too much for the library.
    return [{ type: "unread", raw: text }];
  }
}

const blocksOf = (tokens) => tokens.map((each) => drawnOf(each, 0)).filter((each) => each !== null);

const inner = (token, depth) => token.tokens.map((each) => drawnOf(each, depth + 1));

function drawnOf(token, depth) {
  if (depth > MOST_NESTED) return token.raw;
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "text":
      return token.tokens ? inner(token, depth) : decoded(token.text);
    case "escape":
      return token.text;
    case "paragraph":
      return html`<p>${inner(token, depth)}</p>`;
    case "heading":
      return html`<${`h${Math.min(6, token.depth + 1)}`}>${inner(token, depth)}<//>`;
    case "strong":
    case "em":
    case "del":
    case "blockquote":
      return html`<${token.type}>${inner(token, depth)}<//>`;
    case "hr":
    case "br":
      return html`<${token.type} />`;
    case "codespan":
      return html`<code>${token.text}</code>`;
    case "code":
      return html`<${Code} text=${token.text} language=${token.lang} />`;
    case "list":
      return list(token, depth);
    case "checkbox":
      return html`<input type="checkbox" disabled checked=${token.checked} aria-label=${token.checked ? "done" : "to do"} /> `;
    case "table":
      return table(token, depth);
    case "link":
      return link(token.href, inner(token, depth));
    case "image":
      return link(token.href, token.text || "picture");
    case "html":
      return /^<br\s*\/?>$/i.test(token.text.trim()) ? html`<br />` : token.raw;
    default:
      return html`<p class="plain">${token.raw}</p>`;
  }
}

function Code({ text, language }) {
  return html`
    <div class="code">
      <div class="head"><span>${language || "text"}</span><${Copy} text=${text} what="the code" /></div>
      <pre tabindex="0"><code>${text}</code></pre>
    </div>
  `;
}

function list({ ordered, start, items }, depth) {
  const drawn = items.map((each) => html`<li class=${each.task ? "task" : undefined}>${inner(each, depth)}</li>`);
  return ordered ? html`<ol start=${start}>${drawn}</ol>` : html`<ul>${drawn}</ul>`;
}

function table({ header, rows }, depth) {
  const cells = (row, tag) =>
    row.map((each) => html`<${tag} class=${each.align ?? undefined} scope=${tag === "th" ? "col" : undefined}>${inner(each, depth)}<//>`);
  return html`
    <div class="scroll" tabindex="0" role="group" aria-label="Table">
      <table>
        <thead><tr>${cells(header, "th")}</tr></thead>
        <tbody>${rows.map((row) => html`<tr>${cells(row, "td")}</tr>`)}</tbody>
      </table>
    </div>
  `;
}

// A link that may be one; a picture is one, too, since it isn't loaded.
function link(href, shown) {
  const written = decoded(href);
  const url = URL.canParse(written) ? new URL(written) : null;
  if (!SAFE.includes(url?.protocol)) return shown;
  return html`<a href=${url.href} title=${url.href} target="_blank" rel="noopener noreferrer">${shown}</a>`;
}

// The library leaves entities to a browser, which gets no HTML here.
function decoded(text) {
  return text.replaceAll(/&(?:#(\d{1,7})|#[xX]([\da-fA-F]{1,6})|([a-z]{2,6}));/g, (whole, decimal, hex, name) => {
    if (name) return NAMED[name] ?? whole;
    const code = decimal ? Number(decimal) : Number.parseInt(hex, 16);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : "\ufffd";
  });
}
