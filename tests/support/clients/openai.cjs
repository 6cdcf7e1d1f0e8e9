// The npm client of OpenAI, against the gateway whose address is its argument; prints JSON.
const { default: OpenAI } = require("openai");

async function main() {
  const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
  const asked = {
    model: "demo",
    messages: [{ role: "user", content: "What can you do?" }],
    temperature: 0,
    max_tokens: 30,
  };
  const found = { models: [], streamed: "" };
  for await (const model of client.models.list()) found.models.push(model.id);
  const whole = await client.chat.completions.create(asked);
  found.whole = whole.choices[0].message.content;
  for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
    found.streamed += chunk.choices[0]?.delta?.content ?? "";
  }
  const parameters = {
    type: "object",
    properties: { city: { enum: ["Rome", "Oslo"] } },
    required: ["city"],
    additionalProperties: false,
  };
  const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
  const called = await client.chat.completions.create({
    ...asked,
    max_tokens: 300,
    tools,
    tool_choice: "required",
  });
  found.call = called.choices[0].message.tool_calls[0].function;
  const embedded = await client.embeddings.create({ model: "demo", input: ["one", "two"] });
  found.vectors = embedded.data.length;
  try {
    await client.chat.completions.create({ ...asked, model: "none" });
  } catch (error) {
    found.error = { status: error.status, code: error.code };
  }
  console.log(JSON.stringify(found));
}

main();
