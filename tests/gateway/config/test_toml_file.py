"""Files that aren't TOML: what is said, and what is still read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.config.toml_file import UnreadableFileError, parse, read_document


def _broken(text: str) -> list[int]:
    return list(parse(text).broken)


class TestParsing:
    def test_lines_that_are_wrong_in_themselves_are_left_out(self) -> None:
        document = parse("a = 1\nb : 2\nc = 3\n= 4\nd = five\ne = 6\n")
        assert document.tables == {"a": 1, "c": 3, "e": 6}
        assert list(document.broken) == [2, 4, 5]
        assert document.text.count("\n") == 6

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ("a = 1\nb = [1,\n2\nc = 3\n[d]\n", 2),
            ('a = 1\nb = """\nc = 3\n\n', 2),
            ("a = 1\nb = '''\nc = 3\n\n", 2),
            ("a = 1\n[b\nc = 3\nd : 4\n", 2),
            ("a = 1\nb = { c = 1\nd : 4\n", 2),
            ('a = { b = """\nc""", d """\ne""" }\nf : 4\n', 2),
            ("[a]\nb = 1\n[a]\nb = 2\n", 3),
        ],
    )
    def test_unfinished_statement_leaves_no_tables(self, text: str, line: int) -> None:
        document = parse(text)
        assert list(document.broken) == [line]
        assert document.tables == {}

    def test_a_key_given_twice(self) -> None:
        document = parse("a = 1\na = 2\nd : 4\n")
        assert (document.tables, list(document.broken)) == ({"a": 1}, [2, 3])

    def test_an_element_that_is_none(self) -> None:
        assert _broken('a = [\n  "b",\n  c,\n  "d",\n]\n') == [3]

    def test_no_more_than_twenty(self) -> None:
        assert _broken("a : 1\n" * 100) == list(range(1, 21))

    def test_numbers_that_take_too_long_to_read(self) -> None:
        assert _broken(f"a = 1\nb = {'9' * 5000}\n") == [2]

    def test_depths_that_no_stack_has(self) -> None:
        assert _broken(f"a = {'[' * 50_000}")

    def test_endings_of_other_systems(self) -> None:
        assert parse("a = 1\r\nb = 2\r\n").tables == {"a": 1, "b": 2}
        assert _broken("a = 1\r\nb : 2\r\n") == [2]


class TestFiles:
    def test_another_encoding(self, tmp_path: Path) -> None:
        path = tmp_path / "config.toml"
        path.write_bytes("a = 1\nb = 'größe'\n".encode("latin-1"))
        assert read_document(path).broken == {2: "this is not UTF-8"}

    def test_folder_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UnreadableFileError, match="Is a directory"):
            read_document(tmp_path)

    def test_nothing_is_waited_for(self, tmp_path: Path) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        for path in (pipe, Path("/dev/zero")):
            with pytest.raises(UnreadableFileError, match="a pipe or a device"):
                read_document(path)
        assert read_document(Path(os.devnull)).tables == {}

    @pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
    def test_file_with_open_rights_is_refused(self, tmp_path: Path, mode: int) -> None:
        path = tmp_path / "config.toml"
        path.touch()
        path.chmod(mode)
        with pytest.raises(UnreadableFileError, match=f"may write to it.*chmod go-w {path}"):
            read_document(path)
        path.chmod(0o644)
        assert read_document(path).tables == {}

    def test_too_large_file_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "config.toml"
        path.write_bytes(bytes((1 << 20) + 1))
        with pytest.raises(UnreadableFileError, match="larger than 1 MiB"):
            read_document(path)
