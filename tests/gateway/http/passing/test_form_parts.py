"""Forms whose fields every server finds alike, and forms that are refused."""

from __future__ import annotations

import msgspec
import pytest
from anthropic.types.beta import message_create_params
from msgspec import Raw
from openai.types import (
    audio,
    chat,
    completion_create_params,
    embedding_create_params,
    image_edit_params,
    image_generate_params,
    responses,
)

from gateway.http.passing.fields import check_query, set_model, unknown
from gateway.http.passing.form_parts import FormParts, boundary_of
from gateway.system.refusal import Refusal

NO_NAME = b"Content-Disposition: form-data"
MODEL = b'Content-Disposition: form-data; name="model"'
FILE = b'Content-Disposition: form-data; name="file"; filename="%b"\r\nContent-Type: audio/wav'


def form(*parts: tuple[bytes, bytes], end: bytes = b"--B--\r\n") -> bytes:
    return b"".join(b"--B\r\n%b\r\n\r\n%b\r\n" % part for part in parts) + end


CHEAP = (MODEL, b"cheap")


def read(body: bytes, step: int) -> tuple[bytes, bytes, bool]:
    """The model, everything that passed, and whether the form has ended."""
    parts = FormParts(b"B")
    model, passed = b"", b""
    for begin in range(0, len(body), step):
        parts.add(body[begin : begin + step])
        if not model and parts.span is not None:
            model = bytes(parts.held[slice(*parts.span)])
        if model:
            passed += parts.pop_checked()
            assert len(parts.held) < 300, "the rest isn't held"
    return model, (passed + parts.held)[2:], parts.closed


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    "parts",
    [
        [CHEAP],
        [(MODEL.replace(b'"', b""), b"cheap"), (b"content-disposition:form-data;name=x", b"")],
        [(FILE % b"a; name=model;.wav", b"\0\r\n\r\n--A\r\n-B --B\r"), CHEAP],
        [CHEAP, (FILE % b"C:\\a.wav", b"\r\n--" * 500), (MODEL[:-6] + b'modes[]"', b"x")],
        [CHEAP, (FILE % "ä".encode() + b"; charset=x", MODEL + b"\r\n\r\ndear")],
        [CHEAP, (NO_NAME + b"; name=f; filename=%22.wav; filename*=UTF-8''%22", b"")],
    ],
)
def test_form_passes_unchanged(parts: list[tuple[bytes, bytes]], step: int) -> None:
    body = form(*parts)
    assert read(body, step) == (b"cheap", body, True)
    assert read(body.removesuffix(b"\r\n"), step)[2], "its last line may have no end"


@pytest.mark.parametrize("step", [1, 1 << 20])
@pytest.mark.parametrize(
    "body",
    [
        form(CHEAP, (MODEL, b"dear")),
        form(CHEAP, (FILE % b"a", b"\0" * 1000), (MODEL, b"dear")),
        form(CHEAP, (FILE % b"a", b"\0" * 1000), (MODEL.lower().replace(b'"', b""), b"dear")),
        *(
            form(CHEAP, (NO_NAME + more, b"dear"))
            for more in (
                b"",
                b"; name*=UTF-8''model",
                b"; name=x; name*=UTF-8''model",
                b'; name="x"; name="model"',
                b'; name="x"; NAME="model"',
                b'; name*0="mo"; name*1="del"',
                b'; name="model[]"',
                b'; name="Model"',
                b'; name=" model"',
                b'; name="m%6fdel"',
                b'; name="mod\\el"',
                b'; name="=?utf-8?B?bW9kZWw=?="',
                b'; name="model"; filename="x"',
                b'; filename="a\\"; name=model; x="; name="x"',
                b'; filename="a\\\\"; name="x"',
                b'; name = "model"',
                b';\r\n name="model"',
                b'; name="x"\r\n' + MODEL,
                b'; name="x"\r\nContent-Disposition : form-data; name="model"',
                b'; name="x"\nContent-Disposition: form-data; name="model"',
                b'; name="x"\r\nContent-Type: multipart/mixed; boundary=C',
            )
        ),
        form(CHEAP, (MODEL.replace(b"form-data", b"attachment"), b"dear")),
        form(CHEAP, (FILE % b"a", b"\n--B\n" + MODEL + b"\n\ndear")),
        form(CHEAP, (FILE % b"a", b"\r--B\r\n" + MODEL + b"\r\n\r\ndear")),
        form(CHEAP, (FILE % b"a", b"\r\n--B \r\n" + MODEL + b"\r\n\r\ndear")),
        form(CHEAP, (FILE % b"a", b"--B\r\n" + MODEL + b"\r\n\r\ndear")),
        form(CHEAP, end=b"--B--") + b"\r\n" + form((MODEL, b"dear")),
        form(CHEAP, end=b"--B--x\r\n" + form((MODEL, b"dear"))),
        b"before\r\n" + form(CHEAP),
    ],
)
def test_ambiguous_form_is_refused(body: bytes, step: int) -> None:
    with pytest.raises(Refusal) as refused:
        read(body, step)
    assert refused.value.status == 400


def test_endless_head_of_part_is_refused() -> None:
    parts = FormParts(b"B")
    parts.add(form(CHEAP, end=b"--B\r\nX: "))
    parts.pop_checked()
    parts.add(b"x" * (3 << 10))
    with pytest.raises(Refusal, match="too long"):
        parts.add(b"x" * (2 << 10))


@pytest.mark.parametrize(
    "body",
    [
        form(CHEAP, *[(NO_NAME + b"; name=x", b"")] * 256),
        form(CHEAP, (FILE % b"a" + b"\r\nX: y" * 8, b"")),
        form(CHEAP, (FILE % b"a" + b" " * 5000, b"")),
    ],
    ids=["parts", "headers", "spaces"],
)
def test_costly_form_is_bounded(body: bytes) -> None:
    with pytest.raises(Refusal, match=r"more than 256 parts|is no header|too long"):
        read(body, 1 << 20)


@pytest.mark.parametrize(
    ("header", "boundary"),
    [
        ("multipart/form-data; boundary=----WebKitFormBoundaryx", b"----WebKitFormBoundaryx"),
        ('Multipart/Form-Data;boundary="a b=c"', b"a b=c"),
        ("multipart/form-data; charset=utf-8; boundary=x", b"x"),
    ],
)
def test_boundary_is_read_from_content_type(header: str, boundary: bytes) -> None:
    assert boundary_of([header]) == boundary


@pytest.mark.parametrize(
    "headers",
    [
        [],
        ["application/json"],
        ["multipart/form-data; boundary=a", "multipart/form-data; boundary=b"],
        ["multipart/form-data; boundary=a; boundary=b"],
        ["multipart/form-data; boundary=a; charset=b; boundary=b"],
        ["multipart/form-data; boundary*=a; boundary=b"],
        ['multipart/form-data; x="; boundary=a"; boundary=b'],
        ["multipart/form-data; boundary=a, multipart/form-data; boundary=b"],
        ['multipart/form-data; boundary="a\\b"'],
        ["multipart/form-data; boundary=a b"],
        ['multipart/form-data; boundary=""'],
    ],
)
def test_ambiguous_boundary_is_refused(headers: list[str]) -> None:
    with pytest.raises(Refusal):
        boundary_of(headers)


def test_other_fields_that_name_a_model_are_refused() -> None:
    fields = {"model": Raw(b"1"), "modelling": Raw(b"2")}
    set_model(fields, "m")
    assert msgspec.json.encode(fields) == b'{"model":"m","modelling":2}'
    for name in ("Model", "models", "fallbacks"):
        with pytest.raises(Refusal, match=name):
            set_model({"model": Raw(b"1"), name: Raw(b"2")}, "m")
    check_query(b"api-version=1&modes=2&x=model", operator=True)
    for data in (b"model=x", b"a=b&Model=x", b"a;model=x", b"%6dodel=x", b"model[]=x", b"model"):
        with pytest.raises(Refusal, match="model"):
            check_query(data, operator=True)


def test_unknown_fields_pass_for_operators_alone() -> None:
    known = ("model", "messages", "file", "image", "top_n_sigma", "output_config")
    assert unknown([*known, "voice_clone"], ["voice_clone"]) == set()
    odd = ("extra_body", "litellm_params", "engine", "pre\u017fet", "models ", "\ufeffmodel", "")
    assert unknown([*known, *odd], ["engines"]) == {*odd}
    check_query(b"", operator=False)
    check_query(b"api-version=1&beta=true", operator=False)
    for data in (b"model%00x=1", b"mo%u0064el=1", b"route=1", b"beta=1&key=2"):
        check_query(data, operator=True)
        with pytest.raises(Refusal, match="isn't passed on"):
            check_query(data, operator=False)


def _fields(params: type) -> set[str]:
    return {name for kind in params.__mro__ for name in getattr(kind, "__annotations__", ())}


@pytest.mark.parametrize(
    "params",
    [
        chat.completion_create_params.CompletionCreateParamsBase,
        completion_create_params.CompletionCreateParamsBase,
        embedding_create_params.EmbeddingCreateParams,
        image_generate_params.ImageGenerateParamsBase,
        image_edit_params.ImageEditParamsBase,
        responses.response_create_params.ResponseCreateParamsBase,
        audio.speech_create_params.SpeechCreateParams,
        audio.transcription_create_params.TranscriptionCreateParamsBase,
        message_create_params.MessageCreateParamsBase,
    ],
)
def test_fields_of_official_clients_are_known(params: type) -> None:
    """But for those that may cost more than the model, or of which no server knows yet."""
    fields = _fields(params)
    assert len(fields) > 4
    of_one_provider = {
        *("access_programs", "billing_policy", "fallback_credit_token", "fallbacks"),
        *("user_profile_id", "workspace_id", "betas", "thread", "markup", "svg", "complexity"),
        *("frame_count", "frame_duration_ms"),
    }
    assert unknown(fields, of_one_provider) == set()
