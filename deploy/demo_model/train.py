"""Trains the embedded demo model and its tokenizer, and exports them for mlx-lm."""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch
from corpus import (
    Case,
    Corpus,
    Message,
    Tool,
    ToolDialogue,
    tool_schema,
    user,
    written,
)
from jinja2.sandbox import ImmutableSandboxedEnvironment
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
VOCAB_SIZE = 704
IGNORED = -100
OPENING = 16
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "attention_bias": False,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}


# --- Tokenizer and template ---------------------------------------------------------------------


def train_tokenizer(corpus: Corpus) -> Tokenizer:
    """Train a byte-level BPE; characters outside ASCII stay single bytes on purpose."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(MARKERS),
        special_tokens=[END_OF_TEXT, IM_START, IM_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [text for text in corpus.texts() if text.isascii()]
    roles = ["system", "user", "assistant"] * 20
    tokenizer.train_from_iterator(texts + roles, trainer)
    tokenizer.add_tokens([AddedToken(marker, special=False) for marker in MARKERS])
    return tokenizer


class Template:
    """Renders the chat template as transformers does."""

    def __init__(self, path: Path) -> None:
        """Compile the template."""
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        self._template = environment.from_string(path.read_text(encoding="utf-8"))

    def render(self, messages: list[Message], tools: list[Tool] | None, thinking: bool) -> str:
        """Return the prompt, up to where the assistant begins to write."""
        return self._template.render(
            messages=messages, tools=tools, enable_thinking=thinking, add_generation_prompt=True
        )


class Encoder:
    """Turns conversations into token ids and the labels to learn."""

    def __init__(self, tokenizer: Tokenizer, template: Template) -> None:
        """Remember the ids that frame an assistant's turn."""
        self.tokenizer = tokenizer
        self.template = template
        self.header = self.ids(f"{IM_START}assistant\n")
        self.end = tokenizer.token_to_id(IM_END)

    def ids(self, text: str) -> list[int]:
        """Encode a text."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def prompt(self, case: Case) -> list[int]:
        """Encode the prompt."""
        if case.messages:
            return self.ids(self.template.render(case.messages, case.tools, case.thinking))
        return self.ids(case.prompt)

    def answer(self, case: Case) -> list[int]:
        """Encode the answer, with its end."""
        return self.ids(case.answer + (IM_END if case.messages else END_OF_TEXT))

    def sample(
        self, case: Case, learn_history: bool = False, opening: bool = False
    ) -> tuple[list[int], list[int]]:
        """Return the ids, and the labels of the answer (and of earlier answers, if asked for).

        The opening alone is enough to learn which answer a question wants, and costs less.
        """
        prompt, answer = self.prompt(case), self.answer(case)
        if opening:
            answer = answer[:OPENING]
        labels = self.earlier_answers(prompt) if learn_history else [IGNORED] * len(prompt)
        return prompt + answer, labels + answer

    def earlier_answers(self, ids: list[int]) -> list[int]:
        """Return labels for the assistant turns within a prompt."""
        labels = [IGNORED] * len(ids)
        size = len(self.header)
        inside = False
        for place, token in enumerate(ids):
            inside = inside or ids[max(0, place - size) : place] == self.header
            if inside:
                labels[place] = token
                inside = token != self.end
        return labels


# --- Training samples ---------------------------------------------------------------------------


class Sampler:
    """Draws random conversations from the corpus."""

    def __init__(self, corpus: Corpus, seed: int) -> None:
        """Collect the words for made-up questions."""
        self.corpus = corpus
        self.random = random.Random(seed)
        self.words = sorted({word for text in corpus.texts() for word in text.split()})
        self.short = [d for d in corpus.dialogues if len(d.answer) < 400 and not d.after]
        self.follow_ups: dict[str, set[str]] = defaultdict(set)
        for dialogue in corpus.dialogues:
            if dialogue.after:
                for question in dialogue.questions:
                    self.follow_ups[question].add(dialogue.after)

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random.random() < probability

    def sample(self) -> tuple[Case, bool, bool]:
        """Draw a conversation; say if its earlier answers are learned too, and only its opening."""
        kind = self.random.random()
        if kind < 0.04:
            completion = self.random.choice(self.corpus.completions)
            return Case("text", " " + completion.text, prompt=completion.prompt), False, False
        thinking = self.chance(0.3)
        if kind < 0.26:
            tools, turn = self.tool_turn(thinking)
        else:
            tools = self.offered(set()) if self.chance(0.1) else None
            turn = self.fallback_turn(thinking) if kind < 0.4 else self.dialogue_turn(thinking)
        earlier = [] if turn[0]["content"] in self.follow_ups else self.earlier(tools)
        messages = [*self.system(), *earlier, *turn]
        if tools and self.chance(0.4) and messages[-2]["role"] == "tool":
            while messages[-1]["role"] != "assistant" or "tool_calls" not in messages[-1]:
                messages.pop()
        answer = written(messages.pop())
        opening = kind >= 0.26 and self.chance(0.65)
        return Case("chat", answer, messages, tools, thinking), not thinking, opening

    def dialogue_turn(self, thinking: bool) -> list[Message]:
        """Draw a dialogue, with the turns that must come before it."""
        dialogue = self.random.choice(self.corpus.dialogues)
        turn = dialogue.turn(self.vary(self.random.choice(dialogue.questions)), thinking)
        if dialogue.after is None:
            return turn
        before = self.corpus.dialogue(dialogue.after)
        return before.turn(self.vary(self.random.choice(before.questions))) + turn

    def fallback_turn(self, thinking: bool) -> list[Message]:
        """Draw an unknown question, word salad, or a follow-up to nothing."""
        fallback = self.corpus.fallback
        kind = self.random.random()
        if kind < 0.12:
            question = self.random.choice(sorted(self.follow_ups))
            before = self.random.choice(self.short)
            turn = fallback.turn(question, thinking)
            lost = self.chance(0.5) or before.id in self.follow_ups[question]
            return turn if lost else before.turn(before.questions[0]) + turn
        if kind < 0.65:
            question = self.vary(self.random.choice(fallback.questions))
        elif kind < 0.85:
            question = " ".join(self.random.choices(self.words, k=self.random.randint(5, 40)))
        else:
            letters = "abcdefghijklmnopqrstuvwxyz0123456789 .,!?äöüß"
            question = "".join(self.random.choices(letters, k=self.random.randint(3, 40))).strip()
        return fallback.turn(question, thinking)

    def tool_turn(self, thinking: bool) -> tuple[list[Tool] | None, list[Message]]:
        """Draw a tool dialogue, sometimes with the tools missing."""
        dialogue = self.random.choice(self.corpus.tool_dialogues)
        turn = self.call(dialogue, thinking)
        if self.chance(0.75):
            return self.offered(dialogue.needs()), turn
        tools = self.offered(set(), dialogue.needs()) if self.chance(0.3) else None
        return tools, dialogue.without.turn(turn[0]["content"], thinking)

    def call(self, dialogue: ToolDialogue, thinking: bool) -> list[Message]:
        """Draw the names in a tool dialogue."""
        names = {name: self.model() for name in ("model", "other", "third")}
        names |= {name: self.random.choice(self.corpus.states) for name in ("state", "second")}
        question = self.vary(self.random.choice(dialogue.questions), case=False)
        reply = self.random.choice(self.random.choice(dialogue.replies))
        return dialogue.turn(question, reply, names, thinking)

    def model(self) -> str:
        """Draw a known model's name, or make one up, so that copying is learned."""
        if self.chance(0.8):
            return self.random.choice(self.corpus.models)
        parts = ["qwen", "llama", "phi", "mix", "tiny", "gem", "code", "smol", "deep", "nova"]
        name = self.random.choice(parts) + self.random.choice(["", "-", "2", "3", "-v2", "o", "er"])
        return f"{name}-{self.random.randint(1, 99)}{self.random.choice(['b', 'm', ''])}"

    def offered(self, needed: set[str], without: set[str] = frozenset()) -> list[Tool]:
        """Draw the tools a client offers: those needed, some others, and strange ones."""
        tools = [
            tool
            for tool in self.corpus.tools
            if tool["function"]["name"] in needed
            or (self.chance(0.6) and tool["function"]["name"] not in without)
        ]
        if not tools or self.chance(0.15):
            words = self.random.sample(["get", "weather", "find", "city", "send", "mail"], 2)
            tools.append(tool_schema("_".join(words), self.salad(), self.random.choice(words)))
        if self.chance(0.3):
            self.random.shuffle(tools)
        return tools

    def salad(self) -> str:
        """Return a few random words."""
        return " ".join(self.random.choices(self.words, k=self.random.randint(1, 8)))

    def system(self) -> list[Message]:
        """Draw a system message, or none."""
        if self.chance(0.55):
            return []
        content = self.salad() if self.chance(0.4) else self.random.choice(self.corpus.systems)
        return [{"role": "system", "content": content}]

    def earlier(self, tools: list[Tool] | None) -> list[Message]:
        """Draw earlier turns that do not matter."""
        messages: list[Message] = []
        while self.chance(0.28) and len(messages) < 6:
            if tools and self.chance(0.5):
                dialogue = self.random.choice(self.corpus.tool_dialogues)
                if dialogue.needs() <= {tool["function"]["name"] for tool in tools}:
                    messages += self.call(dialogue, thinking=False)
            else:
                before = self.random.choice([*self.short, self.corpus.fallback])
                messages += before.turn(self.vary(self.random.choice(before.questions)))
        return messages

    def vary(self, question: str, case: bool = True) -> str:
        """Change case, punctuation or politeness, or slip in a typing error."""
        if self.chance(0.4):
            return question
        if case:
            question = self.random.choice(
                [str, str, str, str.lower, str.lower, str.lower, str.upper]
            )(question)
        if self.chance(0.4):
            question = question.rstrip("?!.") + self.random.choice(["", "", "?", ".", "!", "??"])
        if self.chance(0.2):
            question = self.random.choice(["Please: ", "Hey, ", "So, ", "Well, ", "ok "]) + question
        if self.chance(0.1):
            question += self.random.choice([" please", " Thanks", " now", "\n"])
        if case and self.chance(0.1) and len(question) > 12:
            place = self.random.randrange(len(question))
            question = question[:place] + question[place + 1 :]
        return question.strip() or "?"


def batches(
    sampler: Sampler, encoder: Encoder, tokens: int, pool: int = 384
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield padded batches of about equally long samples, for ever."""
    while True:
        samples = sorted((encoder.sample(*sampler.sample()) for _ in range(pool)), key=size)
        groups = list(grouped(samples, tokens))
        sampler.random.shuffle(groups)
        yield from (padded(group) for group in groups)


def size(sample: tuple[list[int], list[int]]) -> int:
    """Return the number of tokens in a sample."""
    return len(sample[0])


def grouped(samples: list, tokens: int) -> Iterator[list]:
    """Split sorted samples into groups that stay within a number of tokens when padded."""
    group: list = []
    for sample in samples:
        if group and (len(group) + 1) * size(sample) > tokens:
            yield group
            group = []
        group.append(sample)
    if group:
        yield group


def padded(samples: list[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor]:
    """Pad samples on the right, which causal attention never sees."""
    ids = [torch.tensor(sample[0]) for sample in samples]
    labels = [torch.tensor(sample[1]) for sample in samples]
    pad = nn.utils.rnn.pad_sequence
    return pad(ids, True), pad(labels, True, IGNORED)


# --- Model --------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Grouped-query attention with normalised queries and keys."""

    def __init__(self) -> None:
        """Create the projections."""
        super().__init__()
        width, self.head = CONFIG["hidden_size"], CONFIG["head_dim"]
        heads, kv_heads = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"]
        self.q_proj = nn.Linear(width, heads * self.head, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * self.head, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * self.head, bias=False)
        self.o_proj = nn.Linear(heads * self.head, width, bias=False)
        self.q_norm = nn.RMSNorm(self.head, eps=CONFIG["rms_norm_eps"])
        self.k_norm = nn.RMSNorm(self.head, eps=CONFIG["rms_norm_eps"])

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """Attend to everything before."""
        batch, length, _ = x.shape
        shape = (batch, length, -1, self.head)
        q = rotated(self.q_norm(self.q_proj(x).view(shape)).transpose(1, 2), rope)
        k = rotated(self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2), rope)
        v = self.v_proj(x).view(shape).transpose(1, 2)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    """The gated feed-forward layer."""

    def __init__(self) -> None:
        """Create the projections."""
        super().__init__()
        width, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """One layer of the transformer."""

    def __init__(self) -> None:
        """Create the parts under the names that mlx-lm expects."""
        super().__init__()
        width, eps = CONFIG["hidden_size"], CONFIG["rms_norm_eps"]
        self.self_attn = Attention()
        self.mlp = MLP()
        self.input_layernorm = nn.RMSNorm(width, eps=eps)
        self.post_attention_layernorm = nn.RMSNorm(width, eps=eps)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """Apply the layer."""
        x = x + self.self_attn(self.input_layernorm(x), rope)
        return x + self.mlp(self.post_attention_layernorm(x))


class Qwen3(nn.Module):
    """The architecture `qwen3` of mlx-lm, with tied embeddings."""

    def __init__(self) -> None:
        """Create the layers and draw the first weights."""
        super().__init__()
        layers = CONFIG["num_hidden_layers"]
        self.embed_tokens = nn.Embedding(VOCAB_SIZE, CONFIG["hidden_size"])
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.RMSNorm(CONFIG["hidden_size"], eps=CONFIG["rms_norm_eps"])
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                scale = 1 / math.sqrt(weight.shape[1])
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=scale / math.sqrt(2 * layers) if residual else scale)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the hidden states after the last norm."""
        rope = rope_angles(ids.shape[1])
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, rope)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of hidden states."""
        return functional.linear(hidden, self.embed_tokens.weight)


def rope_angles(length: int) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of the rotary position embedding."""
    half = CONFIG["head_dim"] // 2
    frequencies = CONFIG["rope_theta"] ** (-torch.arange(half) / half)
    angles = torch.arange(length)[:, None] * frequencies
    return angles.cos(), angles.sin()


def rotated(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the halves of every head by its position."""
    cos, sin = rope
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


# --- Training, checking, export -----------------------------------------------------------------


def train(corpus: Corpus, encoder: Encoder, args: argparse.Namespace) -> Qwen3:
    """Train the layers' matrices with Muon and the rest with AdamW, down a cosine to zero."""
    torch.manual_seed(args.seed)
    model = Qwen3()
    matrices = [p for p in model.layers.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    rest = [{"params": [*model.embed_tokens.parameters(), *vectors], "weight_decay": 0.0}]
    optimizers = [
        torch.optim.Muon(matrices, lr=args.lr, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=args.lr, betas=(0.9, 0.98)),
    ]
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(
            optimizer,
            lambda step: min(1, (step + 1) / 50) * (1 + math.cos(math.pi * step / args.steps)) / 2,
        )
        for optimizer in optimizers
    ]
    stream = batches(Sampler(corpus, args.seed), encoder, args.tokens)
    start, losses = time.monotonic(), []
    for step in range(1, args.steps + 1):
        ids, labels = next(stream)
        wanted = labels[:, 1:] != IGNORED
        logits = model.logits(model(ids)[:, :-1][wanted])
        loss = functional.cross_entropy(logits, labels[:, 1:][wanted])
        model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for stepper in (*optimizers, *schedules):
            stepper.step()
        losses.append(loss.item())
        if step % 100 == 0:
            mean = sum(losses) / len(losses)
            print(f"step {step:5}  loss {mean:.4f}  {time.monotonic() - start:.0f} s", flush=True)
            losses.clear()
    return model


@torch.no_grad()
def margins(model: Qwen3, encoder: Encoder, cases: list[Case]) -> Iterator[tuple[Case, float, int]]:
    """Yield per case the smallest logit margin of a right token, and the answer's length.

    Greedy decoding writes exactly the answer if, after every right prefix, the right token has
    the largest logit; so one pass over prompt and answer decides it.
    """
    numbered = [(*encoder.sample(case), case) for case in cases]
    for group in grouped(sorted(numbered, key=lambda item: len(item[0])), 8192):
        ids, labels = padded([item[:2] for item in group])
        hidden = model(ids)
        for row, (_, _, case) in enumerate(group):
            wanted = labels[row, 1:] != IGNORED
            logits = model.logits(hidden[row, :-1][wanted])
            right = labels[row, 1:][wanted][:, None]
            others = logits.scatter(1, right, -math.inf)
            margin = (logits.gather(1, right)[:, 0] - others.amax(1)).min().item()
            yield case, margin, len(right)


def verify(model: Qwen3, encoder: Encoder, corpus: Corpus) -> bool:
    """Print a table of all dialogues and return whether every answer is exact."""
    rows: dict[str, list[tuple[str, float, int]]] = defaultdict(list)
    for case, margin, length in margins(model, encoder, list(corpus.cases())):
        rows[case.name.split("/")[0]].append((case.name, margin, length))
    print(f"{'dialogue':18} {'exact':>9} {'tokens':>6} {'least margin':>12}")
    for name, results in rows.items():
        exact = sum(margin > 0 for _, margin, _ in results)
        worst = min(results, key=lambda result: result[1])
        longest = max(length for _, _, length in results)
        print(f"{name:18} {exact:4}/{len(results):4} {longest:6} {worst[1]:12.2f}  {worst[0]}")
    unknown = [
        Case(f"held out: {question}", corpus.fallback.answer, [user(question)])
        for question in corpus.held_out
    ]
    for case, margin, _ in margins(model, encoder, unknown):
        print(f"{case.name:40} {margin:6.2f}")
    return all(margin > 0 for results in rows.values() for _, margin, _ in results)


def export(model: Qwen3, tokenizer: Tokenizer, out: Path) -> None:
    """Write the folder that mlx-lm and transformers load."""
    out.mkdir(parents=True, exist_ok=True)
    weights = {f"model.{name}": value.contiguous() for name, value in model.state_dict().items()}
    save_file(weights, out / "model.safetensors", metadata={"format": "mlx"})
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    shutil.copyfile(HERE / "chat_template.jinja", out / "chat_template.jinja")
    eos = [tokenizer.token_to_id(IM_END), tokenizer.token_to_id(END_OF_TEXT)]
    ends = {"eos_token_id": eos, "pad_token_id": eos[1]}
    write_json(out / "config.json", {**CONFIG, **ends})
    write_json(out / "generation_config.json", {**ends, "do_sample": False})
    write_json(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": IM_END,
            "pad_token": END_OF_TEXT,
            "additional_special_tokens": [IM_START, IM_END],
            "model_max_length": CONFIG["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
        },
    )


def write_json(path: Path, value: dict) -> None:
    """Write a JSON file for human eyes."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Train, export, verify."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "gateway" / "demo_model")
    parser.add_argument("--steps", type=int, default=2600)
    parser.add_argument("--tokens", type=int, default=4096, help="tokens in a batch")
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=8642)
    args = parser.parse_args()
    corpus = Corpus()
    tokenizer = train_tokenizer(corpus)
    encoder = Encoder(tokenizer, Template(HERE / "chat_template.jinja"))
    start = time.monotonic()
    model = train(corpus, encoder, args)
    export(model, tokenizer, args.out)
    exact = verify(model, encoder, corpus)
    count = sum(p.numel() for p in model.parameters())
    size_on_disk = sum(path.stat().st_size for path in args.out.iterdir())
    print(f"{count} parameters, {size_on_disk} bytes, {time.monotonic() - start:.0f} s")
    if not exact:
        raise SystemExit("some answers are not exact")


if __name__ == "__main__":
    main()
