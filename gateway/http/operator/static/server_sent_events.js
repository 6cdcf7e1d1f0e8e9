// EventSource sends no Authorization, so the stream is read here.

// Of a response's body, each message: { event, id, data }. Comments are messages without data.
export async function* messages(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split(/\r?\n\r?\n/);
      rest = blocks.pop();
      for (const block of blocks) yield parsed(block);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parsed(block) {
  const message = { event: "message", id: null, data: null };
  for (const line of block.split(/\r?\n/)) {
    const colon = line.indexOf(":");
    const field = line.slice(0, colon);
    const value = line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") message.data = message.data === null ? value : `${message.data}\n${value}`;
    else if (field === "event" || field === "id") message[field] = value;
  }
  return message;
}
