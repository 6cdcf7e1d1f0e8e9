"""News of ranks are told until they are known to have come."""

from __future__ import annotations

from gateway.server.agent_session import NewsQueue
from gateway.system.child import ExitStatus
from gateway.workers.agent_bodies import RankEnded

END = RankEnded("a", ExitStatus(0, None), "exit code 0")


def test_what_did_not_come_is_told_again_with_what_is_new():
    desk = NewsQueue(lambda: None)
    desk.add_line("a", "one")
    desk.add_end(END)
    assert [each.text for each in desk.tell(1).lines] == ["one"]
    desk.add_line("a", "two")
    again = desk.tell(2)
    assert [each.text for each in again.lines] == ["one", "two"]
    assert again.ended == (END,)
    desk.confirm(2)
    assert desk.tell(3) == type(again)(3)


def test_an_older_answer_confirms_nothing_of_the_last():
    desk = NewsQueue(lambda: None)
    desk.add_end(END)
    desk.tell(1)
    desk.tell(2)
    desk.confirm(1)
    assert desk.tell(3).ended == (END,)


def test_a_flood_of_lines_has_a_bound_and_is_counted():
    desk = NewsQueue(lambda: None)
    for number in range(1200):
        desk.add_line("a", str(number))
    news = desk.tell(1)
    assert [each.text for each in news.lines] == [str(each) for each in range(700, 1200)]
    assert news.lost_lines == 700
    for number in range(100):
        desk.add_line("a", str(number))
    news = desk.tell(2)
    assert len(news.lines) == 500
    assert news.lost_lines == 800


def test_waking_comes_once_for_a_burst():
    woken = []
    desk = NewsQueue(lambda: woken.append(1))
    for number in range(10):
        desk.add_line("a", str(number))
    assert len(woken) == 1
