"""The formula: written from the lock, and good Ruby. Homebrew itself isn't tried."""

from __future__ import annotations

import json
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from HomebrewFormula import formula

ROOT = Path(__file__).parents[2]
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


def _locked() -> dict[str, str]:
    lock = tomllib.loads((formula.HERE / "pylock.toml").read_text("utf-8"))
    return {canonicalize_name(each["name"]): each["version"] for each in lock["packages"]}


def test_the_lock_has_what_bulkhead_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    locked = _locked()
    for text in wanted:
        requirement = Requirement(text)
        version = locked.get(canonicalize_name(requirement.name))
        assert version is not None, f"make the lock anew: {text} is not in it"
        assert requirement.specifier.contains(version), f"make the lock anew: {text}, not {version}"


def test_the_formula_is_the_locks() -> None:
    written = (formula.HERE / "bulkhead.rb").read_text("utf-8")
    assert written == formula.formula(), "make it anew: see HomebrewFormula/formula.py"


@pytest.mark.parametrize("system", formula.SYSTEMS)
def test_every_wheel_fits_each_system(system: str) -> None:
    lock = tomllib.loads((formula.HERE / "pylock.toml").read_text("utf-8"))
    accepted = formula.tags(formula.SYSTEMS[system])
    best = {each["name"]: formula.best(each, accepted)["url"] for each in lock["packages"]}
    # Each system has kernels of its own.
    major = formula.SYSTEMS[system][0]
    assert f"macosx_{major}_0_arm64.whl" in best["mlx-metal"]
    assert f"cp313-cp313-macosx_{major}_0_arm64.whl" in best["mlx"]
    with pytest.raises(ValueError, match=r"^mlx 0 has no wheel"):
        formula.best({"name": "mlx", "version": "0", "wheels": []}, accepted)


@pytest.mark.skipif(RUBY is None, reason="there is no ruby")
def test_ruby_reads_every_resource() -> None:
    assert RUBY is not None
    path = formula.HERE / "bulkhead.rb"
    checked = subprocess.run([RUBY, "-wc", path], capture_output=True, text=True, timeout=60)
    assert (checked.returncode, checked.stderr) == (0, "")
    said = subprocess.run(
        [RUBY, "-e", SAYS, path], capture_output=True, text=True, timeout=60, check=True
    )
    everywhere, *own = json.loads(said.stdout).values()
    assert len(own) == len(formula.SYSTEMS)
    for each in own:
        names = {canonicalize_name(name) for name, *_ in (*everywhere, *each)}
        assert names == set(_locked())
    for _, url, using, digest in (*everywhere, *own[0]):
        assert url.startswith("https://files.pythonhosted.org/")
        assert url.endswith(".whl")
        assert using == "nounzip"
        assert len(bytes.fromhex(digest)) == 32
