from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.why.records import Records
from gateway.why.sections import ENDS, MOST_TEXT_BYTES, WHOLE
from protocol.requests import ChatMessage, ChatPrompt, TextPrompt
from tests.support.asked import asked, chat, sketched, text_section


def test_requests_are_found_by_the_ids_of_request_and_answer() -> None:
    records = Records()
    record = asked(chat("Hello"), id="req_1", answer="resp_1", owner="ann")
    records.add(record)
    records.add(asked(chat("Without an answer"), id="req_0", owner="ann"))
    for name in ("req_1", "resp_1", "msg_req_1", "chatcmpl-req_1", "cmpl-req_1"):
        assert records.find(name) is record
        assert records.find(name, "bob") is None
    assert records.find("req_2") is None
    assert records.find("") is None
    assert records.find("msg_") is None


def test_only_requests_of_the_same_owner_come_before() -> None:
    records = Records()
    anns = [asked(chat("Hello"), owner="ann") for _ in range(3)]
    for record in (anns[0], asked(chat("Hello"), owner="bob"), *anns[1:]):
        records.add(record)
    assert records.before(anns[2]) == anns[:2]
    assert records.before(anns[0]) == []
    assert not records.known("bob").keys() ^ records.known("ann").keys(), "of equal texts"
    assert records.known("eve") == {}


def test_requests_of_one_caller_stay_beside_those_of_another() -> None:
    records = Records()
    first = asked(chat("Hello"), id="first", owner="ann")
    records.add(first)
    for number in range(300):
        records.add(asked(chat(f"Hello {number}"), owner="bob"))
    assert records.find("first") is first
    assert len(records) == 257


def test_request_that_would_drive_out_all_others_is_not_remembered() -> None:
    records = Records(100_000)
    assert records.add(asked(chat("Hello"), id="small"))
    assert not records.add(asked(chat(*(f"{number}" * 9_000 for number in range(4))), id="large"))
    assert records.find("small") is not None
    assert records.find("large") is None


def test_revoked_owner_is_forgotten() -> None:
    records = Records()
    for owner in ("ann", "bob"):
        records.add(asked(chat("Hello"), id=owner, owner=owner))
    records.forget("ann")
    assert (records.find("ann"), records.known("ann")) == (None, {})
    assert records.find("bob") is not None
    records.forget()
    assert (len(records), records.bytes_) == (0, 0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("ann", "bob")),
            st.lists(st.integers(0, 5), min_size=1, max_size=5),
        ),
        max_size=40,
    )
)
def test_memory_is_counted_once_for_each_section_and_bounded(
    requests: list[tuple[str, list[int]]],
) -> None:
    most_bytes = 80_000
    records = Records(most_bytes)
    for owner, numbers in requests:
        prompt = chat(*(f"{number}" * 900 for number in numbers))
        records.add(asked(prompt, owner=owner))
        assert records.bytes_ <= most_bytes
        sections = [*records.known("ann").values(), *records.known("bob").values()]
        assert sum(section.bytes_ for section in sections) <= records.bytes_
    records.forget()
    assert (records.bytes_, records.known("ann"), records.known("bob")) == (0, {}, {})


def test_long_texts_are_remembered_in_part() -> None:
    whole, cut = text_section("a" * WHOLE), text_section("a" * (WHOLE + 1))
    assert whole.whole
    assert (cut.whole, len(cut.begin), len(cut.end)) == (False, ENDS, ENDS)
    assert len(text_section("a" * 5_000_000).pieces) == 4096


def test_request_adds_a_bounded_part_of_its_texts() -> None:
    messages = tuple(ChatMessage("user", f"{number:04}" * 2_000) for number in range(100))
    sections = sketched(ChatPrompt(messages)).sections
    assert sum(section.text_bytes for section in sections) < MOST_TEXT_BYTES + 100 * 2 * 60
    assert sketched(TextPrompt("ä€😀" * 5_000)).sections[0].text_bytes < MOST_TEXT_BYTES
