"""What models of each family write, by hand after their public formats, and what it is made of."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.answers import (
    AnswerPart,
    Reasoning,
    Text,
    ToolCall,
)
from tests.support.templates import templated

ARGUMENTS = '{"city": "Köln", "days": 2}'
OTHER = '{"text": "a \\"b\\" {c} </d>\\n"}'
WEATHER = ToolCall(0, ARGUMENTS, "weather")
NOTE = ToolCall(1, OTHER, "note")


@dataclass(frozen=True)
class Recorded:
    """`marks` stand in the family's template, `tokens` are its special ones. The prompt ends in
    `opening`.
    """

    name: str
    family: str
    answer: str
    parts: list[AnswerPart]
    marks: str = ""
    tokens: tuple[str, ...] = ()
    opening: str = "<|im_start|>assistant\n"
    model_type: str = "llama"

    def tokenizer(self, folder: Path) -> Any:
        """mlx-lm's wrapper of one that has these marks and tokens."""
        template = "{{ messages }}{#" + self.marks + "#}"
        return templated(folder, template, self.tokens, self.model_type)


def _call(name: str, arguments: str, key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


def _both(key: str = "arguments") -> str:
    return f"[{_call('weather', ARGUMENTS, key)}, {_call('note', OTHER, key)}]"


BOTH: list[AnswerPart] = [WEATHER, NOTE]
# Values of these come through mlx-lm's parsers, which write JSON anew.
PLAIN = '{"city": "Köln", "days": 2}'
PLAIN_BOTH: list[AnswerPart] = [
    ToolCall(0, PLAIN, "weather"),
    ToolCall(1, '{"text": "a <b> c"}', "note"),
]

HERMES_MARKS = '<tool_call>\n{"name": tool_call.name}\n</tool_call>'

RECORDED = [
    Recorded(
        "qwen3",
        "hermes",
        "<think>\nThe user asks.\n\nTwo tools.\n</think>\n\nLet me see.\n"
        f"<tool_call>\n{_call('weather', ARGUMENTS)}\n</tool_call>\n"
        f"<tool_call>\n{_call('note', OTHER)}\n</tool_call>",
        [Reasoning("The user asks.\n\nTwo tools."), Text("Let me see."), *BOTH],
        HERMES_MARKS,
        ("<think>", "</think>", "<tool_call>", "</tool_call>"),
    ),
    Recorded(
        "qwen3 thinking, opened by the template",
        "hermes",
        f"Hm.\n</think>\n\n<tool_call>{_call('weather', ARGUMENTS)}</tool_call>",
        [Reasoning("Hm."), WEATHER],
        HERMES_MARKS,
        ("<think>", "</think>"),
        "<|im_start|>assistant\n<think>\n",
    ),
    Recorded(
        "qwen3, thinking closed by the template",
        "hermes",
        "It is warm.",
        [Text("It is warm.")],
        HERMES_MARKS,
        ("<think>", "</think>"),
        "<|im_start|>assistant\n<think>\n\n</think>\n\n",
    ),
    Recorded(
        "a list in one block, arguments as text, before the name",
        "hermes",
        '<tool_call>[{"arguments": {"city": "Köln", "days": 2}, "name": "weather"},\n'
        '{"id": 7, "name": "note", "arguments": '
        + json.dumps(OTHER)
        + '}, {"name": "now"}]</tool_call>',
        [*BOTH, ToolCall(2, "{}", "now")],
        HERMES_MARKS,
    ),
    Recorded(
        "mistral 7",
        "mistral",
        f"[TOOL_CALLS] {_both()}",
        BOTH,
        "[TOOL_CALLS]",
        ("[TOOL_CALLS]",),
        "[/INST]",
    ),
    Recorded(
        "magistral",
        "mistral",
        f"[THINK]Hm.[/THINK]Wait.[TOOL_CALLS]weather[ARGS]{ARGUMENTS}[TOOL_CALLS]note[ARGS]{OTHER}",
        [Reasoning("Hm."), Text("Wait."), *BOTH],
        "[TOOL_CALLS]",
        ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"),
        "[/INST]",
    ),
    Recorded(
        "mistral with ids",
        "mistral",
        f"[TOOL_CALLS]weather[CALL_ID]a1B2c3D4e[ARGS]{ARGUMENTS}",
        [WEATHER],
        "[TOOL_CALLS]",
        ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    ),
    Recorded(
        "llama 3",
        "llama3",
        f"{_call('weather', ARGUMENTS, 'parameters')}; {_call('note', OTHER, 'parameters')}",
        BOTH,
        "",
        ("<|python_tag|>", "<|eom_id|>"),
    ),
    Recorded(
        "llama 3 with its tag",
        "llama3",
        '<|python_tag|>{"type": "function", ' + _call("weather", ARGUMENTS, "parameters")[1:],
        [WEATHER],
        "",
        ("<|python_tag|>",),
    ),
    Recorded(
        "llama 3, JSON that is no call",
        "llama3",
        '{"name": "Ada", "age": 36}',
        [Text('{"name": "Ada", "age": 36}')],
        "",
        ("<|python_tag|>",),
    ),
    Recorded(
        "llama 3, a program",
        "llama3",
        "<|python_tag|>print(1)",
        [Text("<|python_tag|>print(1)")],
        "",
        ("<|python_tag|>",),
    ),
    Recorded(
        "llama 4",
        "llama4",
        '[weather(city="Köln", days=2), note(text="a <b> c")]',
        PLAIN_BOTH,
        "",
        ("<|python_start|>", "<|python_end|>"),
    ),
    Recorded(
        "deepseek r1",
        "deepseek",
        "Hm.\n</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
        f"```json\n{ARGUMENTS}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>note\n"
        f"```json\n{OTHER}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [Reasoning("Hm."), *BOTH],
        "<｜tool▁calls▁begin｜>",
        ("<think>", "</think>", "<｜tool▁calls▁begin｜>"),
        "<｜Assistant｜><think>\n",
    ),
    Recorded(
        "deepseek 3.1",
        "deepseek",
        "Two.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
        f"{ARGUMENTS}<｜tool▁call▁end｜><｜tool▁call▁begin｜>note<｜tool▁sep｜>{OTHER}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [Text("Two."), *BOTH],
        "<｜tool▁calls▁begin｜>",
        ("<think>", "</think>"),
        "<｜Assistant｜></think>",
    ),
    Recorded(
        "deepseek 3.2",
        "deepseek_v32",
        'Two.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
        '<｜DSML｜parameter name="city" string="true">Köln</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="note">\n<｜DSML｜parameter name="text" string="true">a <b> c'
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        [Text("Two."), *PLAIN_BOTH],
        "",
        ("｜DSML｜", "<｜tool▁calls▁begin｜>"),
    ),
    Recorded(
        "kimi k2",
        "kimi_k2",
        "<think>Hm.</think>Two.<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
        f"<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|><|tool_call_begin|>"
        f"functions.note:1<|tool_call_argument_begin|>{OTHER}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        [Reasoning("Hm."), Text("Two."), *BOTH],
        "<|tool_calls_section_begin|>",
        ("<think>", "</think>", "<|tool_calls_section_begin|>"),
    ),
    Recorded(
        "gpt-oss",
        "harmony",
        "<|channel|>analysis<|message|>We need both.<|end|><|start|>assistant<|channel|>commentary"
        "<|message|>Two calls.<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
        f"<|constrain|>json<|message|>{ARGUMENTS}<|call|><|start|>assistant to=functions.note"
        f"<|channel|>commentary json<|message|>{OTHER}<|call|>",
        [Reasoning("We need both."), Text("Two calls."), *BOTH],
        "",
        ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"),
        "<|start|>assistant",
    ),
    Recorded(
        "gpt-oss, final",
        "harmony",
        "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>Hi",
        [Reasoning("Easy."), Text("Hi")],
        "",
        ("<|start|>", "<|channel|>", "<|message|>", "<|end|>"),
        "<|start|>assistant",
    ),
    Recorded(
        "gpt-oss, header in the prompt",
        "harmony",
        "Hi",
        [Text("Hi")],
        "",
        ("<|start|>", "<|channel|>", "<|message|>"),
        "<|start|>assistant<|channel|>final<|message|>",
    ),
    Recorded(
        "command a",
        "command",
        "<|START_THINKING|>I will look.<|END_THINKING|><|START_ACTION|>[\n"
        f'    {{"tool_call_id": "0", "tool_name": "weather", "parameters": {ARGUMENTS}}},\n'
        f'    {{"tool_call_id": "1", "tool_name": "note", "parameters": {OTHER}}}\n'
        "]<|END_ACTION|>",
        [Reasoning("I will look."), *BOTH],
        "",
        (
            "<|START_THINKING|>",
            "<|END_THINKING|>",
            "<|START_ACTION|>",
            "<|END_ACTION|>",
            "<|START_RESPONSE|>",
            "<|END_RESPONSE|>",
        ),
    ),
    Recorded(
        "command a, a response",
        "command",
        "<|START_RESPONSE|>It is warm.<|END_RESPONSE|>",
        [Text("It is warm.")],
        "",
        ("<|START_ACTION|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    Recorded("granite 3", "granite", f"<|tool_call|>{_both()}", BOTH, "", ("<|tool_call|>",)),
    Recorded(
        "phi 4",
        "phi4",
        f"<|tool_call|>{_both()}<|/tool_call|>",
        BOTH,
        "",
        ("<|tool_call|>", "<|/tool_call|>"),
    ),
    Recorded(
        "phi 4, untagged",
        "phi4",
        f"functools{_both()}",
        BOTH,
        "",
        ("<|tool_call|>", "<|/tool_call|>"),
    ),
    Recorded(
        "phi 4, prose",
        "phi4",
        "import functools\nimport sys",
        [Text("import functools\nimport sys")],
        "",
        ("<|tool_call|>", "<|/tool_call|>"),
    ),
    Recorded(
        "nemotron",
        "nemotron",
        f"<think>Hm.</think>\n<TOOLCALL>{_both()}</TOOLCALL>",
        [Reasoning("Hm."), *BOTH],
        "<TOOLCALL>",
        ("<think>", "</think>"),
    ),
    Recorded(
        "internlm",
        "internlm",
        "Two.<|action_start|><|plugin|>\n"
        f"{_call('weather', ARGUMENTS, 'parameters')}\n<|action_end|>",
        [Text("Two."), WEATHER],
        "",
        ("<|action_start|>", "<|action_end|>", "<|plugin|>"),
    ),
    Recorded(
        "hunyuan a13b",
        "hunyuan",
        f"<think>\nHm.\n</think>\n<answer>\nTwo.\n<tool_calls>{_both()}</tool_calls>\n</answer>",
        [Reasoning("Hm."), Text("Two."), *BOTH],
        "<think> </think> <answer> </answer> <tool_calls>",
    ),
    Recorded(
        "hunyuan, dense",
        "hunyuan",
        f"<tool_calls>\n<tool_call>weather\n```json\n{ARGUMENTS}\n```\n</tool_call>\n"
        f"<tool_call>note\n```json\n{OTHER}\n```\n</tool_call>\n</tool_calls>",
        BOTH,
        "<tool_calls> <tool_call> tool_call.name",
    ),
    Recorded(
        "seed oss",
        "seed_oss",
        "<seed:think>Hm.</seed:think>\n<seed:tool_call>\n<function=weather>\n"
        "<parameter=city>Köln</parameter>\n<parameter=days>2</parameter>\n</function>\n"
        "</seed:tool_call>",
        [Reasoning("Hm."), ToolCall(0, PLAIN, "weather")],
        "<seed:tool_call>\n<function=",
        ("<seed:think>", "</seed:think>", "<seed:tool_call>", "</seed:tool_call>"),
    ),
    Recorded(
        "olmo 3",
        "olmo3",
        '<function_calls>weather(city="Köln", days=2)\nnote(text="a <b> c")</function_calls>',
        PLAIN_BOTH,
        "<function_calls>",
    ),
    Recorded(
        "qwen3 coder",
        "qwen3_coder",
        "Two.\n<tool_call>\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n<function=note>\n<parameter=text>\n"
        "a <b> c\n</parameter>\n</function>\n</tool_call>",
        [Text("Two."), *PLAIN_BOTH],
        "<tool_call>\n<function=",
    ),
    Recorded(
        "glm",
        "glm47",
        "<think>Hm.</think>\n<tool_call>weather\n<arg_key>city</arg_key>\n"
        "<arg_value>Köln</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n"
        "</tool_call>\n<tool_call>note<arg_key>text</arg_key><arg_value>a <b> c</arg_value>"
        "</tool_call>",
        [Reasoning("Hm."), *PLAIN_BOTH],
        "<arg_key>",
        ("<think>", "</think>"),
    ),
    Recorded(
        "minimax",
        "minimax_m2",
        'Hm.\n</think>\n\n<minimax:tool_call>\n<invoke name="weather">\n'
        '<parameter name="city">Köln</parameter>\n<parameter name="days">2</parameter>\n</invoke>\n'
        '<invoke name="note">\n<parameter name="text">a <b> c</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
        [Reasoning("Hm."), *PLAIN_BOTH],
        "<minimax:tool_call>",
        ("<think>", "</think>"),
        "]~b]ai\n<think>\n",
    ),
    Recorded(
        "gemma 4",
        "gemma4",
        '<|channel>thought\nHm.<channel|>Two.<|tool_call>call:weather{city:<|"|>Köln<|"|>,days:2}'
        '<tool_call|><|tool_call>call:note{text:<|"|>a <b> c<|"|>}<tool_call|>',
        [Reasoning("Hm."), Text("Two."), *PLAIN_BOTH],
        "<|tool_call> <tool_call|>",
        ("<|channel>", "<channel|>"),
    ),
    Recorded(
        "function gemma",
        "function_gemma",
        "<start_function_call>call:weather{city:<escape>Köln<escape>,days:2}<end_function_call>",
        [ToolCall(0, PLAIN, "weather")],
        "<start_function_call>",
    ),
    Recorded(
        "lfm 2",
        "pythonic",
        '<|tool_call_start|>[weather(city="Köln", days=2), note(text="a <b> c")]<|tool_call_end|>'
        "Done.",
        [*PLAIN_BOTH, Text("Done.")],
        "<|tool_list_start|>",
    ),
    Recorded(
        "longcat",
        "longcat",
        "<longcat_think>Hm.</longcat_think><longcat_tool_call>weather\n"
        "<longcat_arg_key>city</longcat_arg_key>\n<longcat_arg_value>Köln</longcat_arg_value>\n"
        "<longcat_arg_key>days</longcat_arg_key>\n<longcat_arg_value>2</longcat_arg_value>\n"
        "</longcat_tool_call>",
        [Reasoning("Hm."), ToolCall(0, PLAIN, "weather")],
        "<longcat_tool_call>",
        ("<longcat_think>", "</longcat_think>"),
    ),
    Recorded(
        "minicpm 5",
        "minicpm5",
        '<function name="note"><param name="text"><![CDATA[a <b> c]]></param></function>',
        [ToolCall(0, '{"text": "a <b> c"}', "note")],
        '<function name=" <param name="',
    ),
    Recorded(
        "kimi k3",
        "kimi_k3",
        "<|open|>think<|sep|>Hm.<|close|>think<|sep|><|open|>response<|sep|>Two."
        '<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Köln<|close|>argument<|sep|>'
        '<|open|>argument key="days" type="number"<|sep|>2<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>",
        [Reasoning("Hm."), Text("Two."), ToolCall(0, PLAIN, "weather")],
        "",
        ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
    ),
    Recorded(
        "muse spark",
        "muse_spark",
        "to=self<|message|>Hm.<|eom|><|start|>assistant to=weather<|message|>"
        "<atem:function_calls>\n"
        '<atem:invoke name="weather">\n<atem:parameter name="city">Köln</atem:parameter>\n'
        '<atem:parameter name="days">2</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
        "<|eom|><|start|>assistant to=user<|message|>Done.<|eot|>",
        [Reasoning("Hm."), ToolCall(0, PLAIN, "weather"), Text("Done.")],
        "<atem:function_calls>",
        ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
        "<|start|>assistant ",
        "muse_spark",
    ),
    Recorded(
        "a model without a word on tools",
        "hermes",
        f"So. <tool_call>{_call('weather', ARGUMENTS)}</tool_call>",
        [Text("So."), WEATHER],
    ),
]
