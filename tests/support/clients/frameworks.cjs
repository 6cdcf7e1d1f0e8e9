// npm's frameworks for agents, one at a time, against a gateway; prints JSON. As frameworks.py.
const [name, url] = process.argv.slice(2);
const base = `${url}/v1`;
const QUESTION = "What can you do?";
const WEATHER = "What is the weather like?";
const TEXTS = ["one", "two"];

async function joined(parts) {
  let text = "";
  for await (const part of parts) text += part;
  return text;
}

async function ai() {
  const { generateText, streamText, embedMany, tool, stepCountIs, Output } = require("ai");
  const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
  const { createAnthropic } = require("@ai-sdk/anthropic");
  const { z } = require("zod");
  const openai = createOpenAICompatible({
    name: "bulkhead",
    baseURL: base,
    includeUsage: true,
    supportsStructuredOutputs: true,
  });
  const anthropic = createAnthropic({ baseURL: base, apiKey: "none" });
  const get_weather = tool({
    description: "Tell the weather of a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => `In ${city} the sun is out.`,
  });
  const schema = z.object({ city: z.enum(["Rome", "Oslo"]) });
  const found = { whole: [], streamed: [], tooled: [], schema: [] };
  for (const provider of [openai, anthropic]) {
    const greedy = { model: provider("demo"), temperature: 0, maxOutputTokens: 30, maxRetries: 0 };
    found.whole.push((await generateText({ ...greedy, prompt: QUESTION })).text);
    found.streamed.push(await joined(streamText({ ...greedy, prompt: QUESTION }).textStream));
    const asked = {
      model: provider("weather"),
      tools: { get_weather },
      stopWhen: stepCountIs(3),
      prompt: WEATHER,
      maxRetries: 0,
    };
    found.tooled.push((await generateText(asked)).text);
    found.tooled.push(await streamText(asked).text);
    const chosen = await generateText({
      model: provider("demo"),
      output: Output.object({ schema }),
      prompt: QUESTION,
      maxRetries: 0,
    });
    found.schema.push(chosen.output.city);
  }
  const model = openai.embeddingModel("demo");
  const embedded = await embedMany({ model, values: TEXTS, maxRetries: 0 });
  return { ...found, vectors: embedded.embeddings.length };
}

async function langchain() {
  const { ChatOpenAI, OpenAIEmbeddings } = require("@langchain/openai");
  const { HumanMessage } = require("@langchain/core/messages");
  const { tool } = require("@langchain/core/tools");
  const { z } = require("zod");
  const found = { whole: [], streamed: [], tooled: [], schema: [] };
  const at = { apiKey: "none", maxRetries: 0, configuration: { baseURL: base } };
  const get_weather = tool(async ({ city }) => `In ${city} the sun is out.`, {
    name: "get_weather",
    description: "Tell the weather of a city.",
    schema: z.object({ city: z.string() }),
  });
  const schema = z.object({ city: z.enum(["Rome", "Oslo"]) });
  for (const useResponsesApi of [false, true]) {
    const kind = { ...at, useResponsesApi };
    const greedy = new ChatOpenAI({ ...kind, model: "demo", temperature: 0, maxTokens: 30 });
    found.whole.push((await greedy.invoke(QUESTION)).text);
    let text = "";
    for await (const chunk of await greedy.stream(QUESTION)) text += chunk.text;
    found.streamed.push(text);
    const calling = new ChatOpenAI({ ...kind, model: "weather" }).bindTools([get_weather]);
    const messages = [new HumanMessage(WEATHER)];
    messages.push(await calling.invoke(messages));
    for (const call of messages[1].tool_calls) messages.push(await get_weather.invoke(call));
    found.tooled.push((await calling.invoke(messages)).text);
    const demo = new ChatOpenAI({ ...kind, model: "demo" });
    for (const method of ["jsonSchema", "functionCalling"]) {
      const choosing = demo.withStructuredOutput(schema, { method });
      found.schema.push((await choosing.invoke(QUESTION)).city);
    }
  }
  const embedding = new OpenAIEmbeddings({ ...at, model: "demo" });
  return { ...found, vectors: (await embedding.embedDocuments(TEXTS)).length };
}

({ ai, langchain })[name]().then((found) => console.log(JSON.stringify(found)));
