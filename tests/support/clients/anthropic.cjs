// The npm client of Anthropic, against the gateway whose address is its argument; prints JSON.
const { default: Anthropic } = require("@anthropic-ai/sdk");

async function main() {
  const client = new Anthropic({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
  const asked = {
    model: "demo",
    messages: [{ role: "user", content: "What can you do?" }],
    max_tokens: 30,
  };
  const found = { events: [] };
  const whole = await client.messages.create(asked);
  found.whole = { stop_reason: whole.stop_reason, kinds: whole.content.map((each) => each.type) };
  const stream = client.messages.stream(asked);
  for await (const event of stream) found.events.push(event.type);
  found.streamed = (await stream.finalMessage()).usage.output_tokens;
  const counted = await client.messages.countTokens({ model: "demo", messages: asked.messages });
  found.counted = counted.input_tokens;
  found.models = (await client.models.list()).data.map((each) => each.id);
  try {
    await client.messages.create({ ...asked, model: "none" });
  } catch (error) {
    found.error = { status: error.status, type: error.error.error.type };
  }
  console.log(JSON.stringify(found));
}

main();
