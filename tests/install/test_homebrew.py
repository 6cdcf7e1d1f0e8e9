"""The formula is what a lock says, and good Ruby. Homebrew itself isn't tried."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from deploy.homebrew import formula

RUBY = shutil.which("ruby")
# As much of Homebrew's language as says what the formula says.
SAYS = """
require "json"
require "pathname"
module Language; module Python; module Virtualenv; end; end; end
class Resource
  def initialize(said, name)
    @said, @name = said, name
  end
  def url(at, using:)
    @said << [@name, at, using]
  end
  def sha256(sum)
    @said.last << sum
  end
end
class Formula
  RESOURCES = Hash.new { |all, system| all[system] = [] }
  def self.resource(name, &body)
    Resource.new(RESOURCES[@system], name).instance_eval(&body)
  end
  %i[on_sonoma on_sequoia on_tahoe].each do |name|
    define_singleton_method(name) do |*_newer, &body|
      @system = name
      class_eval(&body)
      @system = nil
    end
  end
  %i[desc license head depends_on test].each do |name|
    define_singleton_method(name) { |*_arguments, **_options, &_body| }
  end
end
load ARGV.first
puts JSON.generate(Formula::RESOURCES)
"""


INDEX = "https://index.example/packages"
COMMITTED = formula.committed(Path("/copies/bulkhead"))


def _package(name: str, *wheels: str, marker: str = "") -> str:
    """A package of a lock, whose wheels are told by their tags."""
    said = [f'marker = "{marker}"'] if marker else []
    offered = ", ".join(
        f'{{ url = "{INDEX}/{name.replace("-", "_")}-1.0-{tags}.whl", '
        f'hashes = {{ sha256 = "{number:064x}" }} }}'
        for number, tags in enumerate(wheels)
    )
    lines = ["[[packages]]", f'name = "{name}"', 'version = "1.0"', *said, f"wheels = [{offered}]"]
    return "\n".join(lines) + "\n"


OWN = [f"cp313-cp313-macosx_{major}_0_arm64" for major, _ in formula.SYSTEMS.values()]
LOCK = (
    _package("everywhere", "py3-none-any")
    + _package("built-once", "cp313-cp313-macosx_10_13_x86_64", "cp313-cp313-macosx_11_0_arm64")
    + _package("mlx", *OWN)
    + _package("for-linux", "py3-none-any", marker="sys_platform == 'linux'")
)


@pytest.mark.parametrize("system", formula.SYSTEMS)
def test_each_system_gets_the_newest_wheel_that_it_takes(system: str) -> None:
    accepted = formula.tags(formula.SYSTEMS[system])
    for package in tomllib.loads(LOCK)["packages"]:
        url = formula.best(package, accepted)["url"]
        assert "x86_64" not in url
        if package["name"] == "mlx":
            # Each system has kernels of its own.
            assert url.endswith(f"macosx_{formula.SYSTEMS[system][0]}_0_arm64.whl")
    with pytest.raises(ValueError, match=r"^mlx 0 has no wheel"):
        formula.best({"name": "mlx", "version": "0", "wheels": []}, accepted)


def test_it_has_a_resource_for_every_package_that_a_mac_takes() -> None:
    text = formula.formula(LOCK, COMMITTED)
    assert text.count('resource "everywhere" do') == 1
    assert text.count('resource "built-once" do') == 1
    assert text.count('resource "mlx" do') == len(formula.SYSTEMS)
    assert [f"on_{name}" in text for name in formula.SYSTEMS] == [True] * len(formula.SYSTEMS)
    assert "for-linux" not in text
    assert 'head "file:///copies/bulkhead", using: :git, branch: "main"' in text


def test_a_release_is_named_by_its_digest(tmp_path: Path) -> None:
    archive = tmp_path / "mlx_bulkhead-1.0.tar.gz"
    archive.write_bytes(b"an archive")
    url = f"{INDEX}/{archive.name}"
    text = formula.formula(LOCK, formula.released(archive, url))
    assert f'  url "{url}"\n  sha256 "{hashlib.sha256(b"an archive").hexdigest()}"\n' in text
    assert "\n  head " not in text


@pytest.mark.skipif(RUBY is None, reason="there is no ruby")
def test_ruby_reads_every_resource(tmp_path: Path) -> None:
    assert RUBY is not None
    path = tmp_path / "bulkhead.rb"
    path.write_text(formula.formula(LOCK, COMMITTED), "utf-8")
    checked = subprocess.run([RUBY, "-wc", path], capture_output=True, text=True, timeout=60)
    assert (checked.returncode, checked.stderr) == (0, "")
    said = subprocess.run(
        [RUBY, "-e", SAYS, path], capture_output=True, text=True, timeout=60, check=True
    )
    everywhere, *own = json.loads(said.stdout).values()
    assert len(own) == len(formula.SYSTEMS)
    for item in own:
        names = sorted(name for name, *_ in (*everywhere, *item))
        assert names == ["built-once", "everywhere", "mlx"]
    for _, url, using, digest in (*everywhere, *own[0]):
        assert url.startswith(INDEX)
        assert url.endswith(".whl")
        assert using == "nounzip"
        assert len(bytes.fromhex(digest)) == 32
