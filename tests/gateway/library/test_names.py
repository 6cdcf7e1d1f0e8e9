"""Who has which name: whoever had it first, for as long as it may come back."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.library.names import Claimant, NameClaim, Names, give_names, news, remembered


def claim(home: str) -> NameClaim:
    return NameClaim(home, home.rpartition("/")[2], "/".join(home.split("/")[-2:]))


def model(*homes: str) -> Claimant:
    return Claimant(homes[-1], tuple(map(claim, homes)))


def given(
    *found: Claimant, holders: dict[str, str] | None = None, taken: tuple[str, ...] = ()
) -> dict[str, list[str]]:
    return give_names(holders or {}, taken, found).given


def test_the_first_has_the_plain_name_and_the_next_a_longer_one() -> None:
    assert given(model("b/x"), model("a/x")) == {"a/x": ["x"], "b/x": ["b/x"]}
    before = give_names({}, (), [model("b/x")])
    assert before.given == {"b/x": ["x"]}
    after = give_names(before.holders, (), [model("b/x"), model("a/x")])
    assert after.given == {"b/x": ["x"], "a/x": ["a/x"]}
    assert news(before.holders, after.holders) == ["a/x is served as a/x, as b/x has the name x."]
    assert news(after.holders, after.holders) == []


def test_a_name_waits_for_a_model_that_is_away() -> None:
    holders = {"x": "b/x"}
    assert given(model("a/x"), holders=holders) == {"a/x": ["a/x"]}
    assert given(model("a/x"), model("b/x"), holders=holders)["b/x"] == ["x"]


def test_a_name_whose_model_is_gone_is_given_again_and_every_id_stays() -> None:
    holders = {"a/x": "a/x"}
    # Whoever had to take a longer name keeps it, and the plain one leads to it as well.
    names = give_names(holders, (), [model("a/x")])
    assert names.given == {"a/x": ["a/x", "x"]}
    assert news({"x": "b/x", **holders}, names.holders) == [
        "The name x means a/x now, as b/x is gone."
    ]
    assert given(model("a/x"), model("c/x"), holders=holders) == {"a/x": ["a/x"], "c/x": ["x"]}


def test_the_configuration_takes_any_name() -> None:
    holders = {"x": "a/x"}
    assert given(model("a/x"), holders=holders, taken=("x",)) == {"a/x": ["a/x"]}
    assert given(model("a/x"), holders=holders, taken=("x", "a/x")) == {}


def test_a_link_gives_its_name_and_later_links_give_aliases() -> None:
    linked = model("/models/mine", "org/x")
    assert given(linked) == {"org/x": ["mine", "x"]}
    assert given(linked, holders={"x": "org/x"}) == {"org/x": ["x", "mine"]}
    # A name that another model could have as its id is no alias.
    assert given(linked, model("other/x")) == {"org/x": ["mine"], "other/x": ["x"]}


def test_names_that_no_terminal_shows_are_not_given() -> None:
    assert given(model("a/x\n")) == {}
    assert given(model("a/x"), holders={"\x1b[2J": "a/x", "other": "a/x"}) == {"a/x": ["x"]}


@pytest.mark.parametrize(("most", "expected"), [(4, "abcd"), (3, "acd"), (2, "ad"), (1, "ad")])
def test_the_oldest_that_are_away_are_forgotten(most: int, expected: str) -> None:
    holders = {"a": "here", "b": "1", "c": "2", "d": "there"}
    assert "".join(remembered(holders, {"here", "there"}, most)) == expected


HOMES = ("a/x", "b/x", "c/x", "/m/x", "/m/y", "a/y", "b/y")
LINKS = ("/l/x", "/l/y", "/l/z")
NAMES = ("x", "y", "z", "a/x", "m/x", "l/x")


class Disks(RuleBasedStateMachine):
    """Models come, go away for a while, come back and are removed; links and tables come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.here: set[str] = set()
        self.away: set[str] = set()
        self.links: dict[str, str] = {}
        self.tables: set[str] = set()
        self.tables_before: set[str] = set()
        self.names = Names({}, {})

    @rule(home=st.sampled_from(HOMES))
    def come(self, home: str) -> None:
        self.here.add(home)
        self.away.discard(home)

    @rule(home=st.sampled_from(HOMES))
    def go_away(self, home: str) -> None:
        if home in self.here:
            self.here.discard(home)
            self.away.add(home)

    @rule(home=st.sampled_from(HOMES))
    def remove(self, home: str) -> None:
        self.here.discard(home)
        self.away.discard(home)

    @rule(link=st.sampled_from(LINKS), home=st.sampled_from(HOMES))
    def link(self, link: str, home: str) -> None:
        if link not in self.links:
            self.links[link] = home

    @rule(link=st.sampled_from(LINKS))
    def unlink(self, link: str) -> None:
        self.links.pop(link, None)

    @rule(name=st.sampled_from(NAMES))
    def write_table(self, name: str) -> None:
        self.tables ^= {name}

    @invariant()
    def names_stay(self) -> None:
        there = self.here | self.away | set(self.links)
        before = self.names
        held = {name: home for name, home in before.holders.items() if home in there}
        found = [
            model(*sorted(link for link, to in self.links.items() if to == home), home)
            for home in sorted(self.here)
        ]
        now = self.names = give_names(held, self.tables, found)
        everyone = [name for names in now.given.values() for name in names]
        assert len(everyone) == len(set(everyone))
        assert not self.tables & set(everyone)
        assert held.items() <= now.holders.items()
        for claimant in found:
            names = now.given.get(claimant.source, [])
            had = [
                name
                for name in before.given.get(claimant.source, [])
                if name not in self.tables and before.holders[name] in there
            ]
            assert set(had) <= set(names)
            # A table that is taken out gives back a name, which may have been the id before.
            if (
                had[:1] == before.given.get(claimant.source, [])[:1]
                and self.tables == self.tables_before
            ):
                assert had[:1] in ([], names[:1])
            if not names:
                homes = {None, *(one.home for one in claimant.claims)}
                for wanted in (name for one in claimant.claims for name in (one.name, one.longer)):
                    assert wanted in self.tables or now.holders.get(wanted) not in homes
        self.tables_before = set(self.tables)


TestDisks = Disks.TestCase
TestDisks.settings = settings(max_examples=60, stateful_step_count=40)
