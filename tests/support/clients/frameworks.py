"""Python's frameworks for agents, one at a time, against a gateway; prints JSON.

The arguments are the framework's name and the gateway's address. The gateway has the model `demo`,
and the scripted models of tests/e2e/test_frameworks.py, which call the tool and are done. The
frameworks are in an environment of their own: they want other versions than the tests do.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel

URL = sys.argv[2]
BASE = f"{URL}/v1"
QUESTION = "What can you do?"
WEATHER = "What is the weather like?"


class City(BaseModel, extra="forbid"):
    """A city of two."""

    city: Literal["Rome", "Oslo"]


def get_weather(city: str) -> str:
    """Tell the weather of a city.

    Args:
        city: The city's name.
    """
    return f"In {city} the sun is out."


def pydantic_ai() -> dict[str, Any]:
    from pydantic_ai import Agent, Embedder, NativeOutput, Tool
    from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    openai = OpenAIProvider(base_url=BASE, api_key="none")
    anthropic = AnthropicProvider(base_url=URL, api_key="none")

    def models(name: str) -> list[Any]:
        return [
            OpenAIChatModel(name, provider=openai),
            OpenAIResponsesModel(name, provider=openai),
            AnthropicModel(name, provider=anthropic),
        ]

    async def streamed(agent: Any) -> str:
        async with agent.run_stream(QUESTION) as answer:
            return "".join([item async for item in answer.stream_text(delta=True)])

    greedy: Any = {"temperature": 0, "max_tokens": 30}
    talkers = [Agent(model, model_settings=greedy) for model in models("demo")]
    whole = [talker.run_sync(QUESTION).output for talker in talkers]
    parts = [asyncio.run(streamed(talker)) for talker in talkers]
    # A strict tool binds the answer to a grammar, and the script to nothing.
    tools = [Tool(get_weather, strict=False)]
    tooled = [Agent(model, tools=tools).run_sync(WEATHER).output for model in models("weather")]
    chosen = [
        Agent(model, output_type=City).run_sync(QUESTION).output.city for model in models("demo")
    ]
    native = Agent(models("demo")[0], output_type=NativeOutput(City)).run_sync(QUESTION)
    embedder = Embedder(OpenAIEmbeddingModel("demo", provider=openai))
    vectors = embedder.embed_sync(["one", "two"], input_type="document").embeddings
    return {
        "whole": whole,
        "streamed": parts,
        "tooled": tooled,
        "schema": [*chosen, native.output.city],
        "vectors": len(vectors),
    }


def instructor() -> dict[str, Any]:
    import instructor
    from anthropic import Anthropic
    from openai import OpenAI

    openai = OpenAI(base_url=BASE, api_key="none", max_retries=0)
    asked: dict[str, Any] = {
        "model": "demo",
        "messages": [{"role": "user", "content": QUESTION}],
        "response_model": City,
        "max_retries": 0,
        "max_tokens": 300,
    }
    modes = [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA]
    found = [
        instructor.from_openai(openai, mode=mode).chat.completions.create(**asked).city
        for mode in modes
    ]
    client = instructor.from_openai(openai, mode=instructor.Mode.JSON_SCHEMA)
    partial = list(client.chat.completions.create_partial(**asked))
    anthropic = Anthropic(base_url=URL, api_key="none", max_retries=0)
    found.append(instructor.from_anthropic(anthropic).messages.create(**asked).city)
    return {"schema": [*found, partial[-1].city]}


def openai_agents() -> dict[str, Any]:
    from agents import (
        Agent,
        ModelSettings,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(True)

    async def ask(kind: Any, into: dict[str, list[Any]]) -> None:
        async with AsyncOpenAI(base_url=BASE, api_key="none", max_retries=0) as client:
            demo, weather = kind("demo", client), kind("weather", client)
            greedy = ModelSettings(temperature=0)
            talker = Agent(name="talker", model=demo, model_settings=greedy)
            into["whole"].append((await Runner.run(talker, QUESTION)).final_output)
            running = Runner.run_streamed(talker, QUESTION)
            deltas = [
                event.data.delta
                async for event in running.stream_events()
                if event.type == "raw_response_event"
                and event.data.type == "response.output_text.delta"
            ]
            into["streamed"].append("".join(deltas))
            # As in pydantic_ai.
            tool = function_tool(get_weather, strict_mode=False)
            tooled = Agent(name="tooled", model=weather, tools=[tool])
            into["tooled"].append((await Runner.run(tooled, WEATHER)).final_output)
            choosing = Agent(name="choosing", model=demo, output_type=City)
            into["schema"].append((await Runner.run(choosing, QUESTION)).final_output.city)

    found: dict[str, list[Any]] = {"whole": [], "streamed": [], "tooled": [], "schema": []}
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        asyncio.run(ask(kind, found))
    return found


def llama_index() -> dict[str, Any]:
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.core.llms import ChatMessage
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding
    from llama_index.llms.openai_like import OpenAILike

    def model(name: str, **more: Any) -> Any:
        return OpenAILike(
            model=name,
            api_base=BASE,
            api_key="none",
            is_chat_model=True,
            is_function_calling_model=True,
            max_retries=0,
            **more,
        )

    async def agent() -> str:
        return str(await FunctionAgent(tools=[get_weather], llm=model("weather")).run(WEATHER))

    demo = model("demo", temperature=0, max_tokens=30)
    message = [ChatMessage(role="user", content=QUESTION)]
    embedding = OpenAILikeEmbedding(model_name="demo", api_base=BASE, api_key="none")
    choosing = model("demo", should_use_structured_outputs=True).as_structured_llm(City)
    return {
        "whole": [demo.chat(message).message.content, demo.complete(QUESTION).text],
        "streamed": [
            "".join(item.delta or "" for item in demo.stream_chat(message)),
            "".join(item.delta or "" for item in demo.stream_complete(QUESTION)),
        ],
        "tooled": [asyncio.run(agent())],
        "schema": [choosing.chat(message).raw.city],
        "vectors": len(embedding.get_text_embedding_batch(["one", "two"])),
    }


def dspy() -> dict[str, Any]:
    import dspy

    greedy = {"temperature": 0, "max_tokens": 30, "cache": False, "num_retries": 0}
    lm = dspy.LM("openai/demo", api_base=BASE, api_key="none", **greedy)
    text = dspy.LM("openai/demo", api_base=BASE, api_key="none", model_type="responses", **greedy)
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
    called = lm(WEATHER, tools=[tool], tool_choice="required", max_tokens=300)
    chosen = lm(QUESTION, response_format=City, max_tokens=300)[0]
    embedder = dspy.Embedder("openai/demo", api_base=BASE, api_key="none", caching=False)
    return {
        "whole": [lm(QUESTION)[0], text(QUESTION)[0]["text"]],
        "called": [tool_call.function.name for tool_call in called[0]["tool_calls"]],
        "schema": [json.loads(chosen)["city"]],
        "vectors": len(embedder(["one", "two"])),
    }


def smolagents() -> dict[str, Any]:
    from smolagents import OpenAIServerModel, ToolCallingAgent, tool

    def model(name: str, **more: Any) -> Any:
        return OpenAIServerModel(model_id=name, api_base=BASE, api_key="none", **more)

    demo = model("demo", temperature=0, max_tokens=30)
    message = [{"role": "user", "content": QUESTION}]
    agents = [
        ToolCallingAgent(
            tools=[tool(get_weather)],
            model=model("demo", max_tokens=200),
            verbosity_level=0,
            max_steps=1,
            stream_outputs=streams,
        )
        for streams in (False, True)
    ]
    for agent in agents:
        agent.run(WEATHER)
    return {
        "whole": [demo.generate(message).content],
        "streamed": ["".join(item.content or "" for item in demo.generate_stream(message))],
        "called": [call.name for agent in agents for call in agent.memory.steps[1].tool_calls],
        "schema": [
            json.loads(
                model("demo")
                .generate(
                    message,
                    response_format={
                        "type": "json_schema",
                        "json_schema": {"name": "City", "schema": City.model_json_schema()},
                    },
                )
                .content
            )["city"]
        ],
    }


FRAMEWORKS: list[Callable[[], dict[str, Any]]] = [
    pydantic_ai,
    instructor,
    openai_agents,
    llama_index,
    dspy,
    smolagents,
]

if __name__ == "__main__":
    asked = {framework.__name__: framework for framework in FRAMEWORKS}[sys.argv[1]]
    print(json.dumps(asked()))
