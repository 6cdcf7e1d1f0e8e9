"""launchctl and systemctl, stood in for by programs on PATH that record how they are called.

They start and end real processes, answer in the exit statuses of the real ones, and can be told to
fail.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil

_COMMON = """
import json, os, signal, subprocess, sys, time
from pathlib import Path

FOLDER = Path({folder!r})
arguments = sys.argv[1:]
with (FOLDER / "calls").open("a") as calls:
    calls.write(json.dumps(arguments) + "\\n")

def end(status, text=""):
    if text:
        print(text, file=sys.stderr if status else sys.stdout)
    sys.exit(status)

rules_path = FOLDER / "rules"
rules = json.loads(rules_path.read_text()) if rules_path.exists() else []
for rule in rules:
    if rule["times"] > 0 and " ".join(arguments).startswith(rule["call"]):
        rule["times"] -= 1
        rules_path.write_text(json.dumps(rules))
        end(rule["status"], rule["says"])

def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{{pid}}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        # Without a /proc, as on macOS, whose launchd reaps at once; or it has just ended.
        return not Path("/proc/self/stat").exists()
"""

_LAUNCHCTL = """
import plistlib

verb, *rest = arguments
headless_path = FOLDER / "headless"
headless = json.loads(headless_path.read_text()) if headless_path.exists() else None
jobs = FOLDER / "jobs"
jobs.mkdir(exist_ok=True)

def job(target):
    return jobs / target.replace("/", "__")

def start(target, keys):
    with open(keys["StandardErrorPath"], "ab") as log:
        pid = subprocess.Popen(
            keys["ProgramArguments"],
            env={**os.environ, **keys["EnvironmentVariables"]},
            cwd=keys["WorkingDirectory"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        ).pid
    with (FOLDER / "pids").open("a") as pids:
        pids.write(f"{pid}\\n")
    job(target).write_text(json.dumps({"pid": pid, "keys": keys, "going": False}))

def known(target):
    path = job(target)
    if not path.exists():
        return None
    found = json.loads(path.read_text())
    if found["going"] and not alive(found["pid"]):
        path.unlink()
        return None
    return found

if verb in ("enable", "disable"):
    end(0)
if verb == "bootstrap":
    domain, path = rest
    keys = plistlib.loads(Path(path).read_bytes())
    target = f"{domain}/{keys['Label']}"
    if domain.startswith("gui/") and headless:
        end(headless[1], f"Bootstrap failed: {headless[1]}" if headless[1] else "")
    if domain.startswith("user/") and "Background" not in keys["LimitLoadToSessionType"]:
        end(134, "Service cannot load in requested session")
    if known(target):
        end(5, "Bootstrap failed: 5: Input/output error")
    start(target, keys)
    end(0)
target = rest[-1]
if verb == "print" and "io.bulkhead" not in target:
    end(headless[0] if target.startswith("gui/") and headless else 0)
found = known(target)
if verb == "print":
    end(0 if found else 113, "state = running" if found else "Could not find service")
if verb == "kickstart":
    if not found:
        end(113, "Could not find service")
    if "-k" in rest and alive(found["pid"]):
        os.kill(found["pid"], signal.SIGKILL)
    if not alive(found["pid"]):
        start(target, found["keys"])
    end(0)
if verb == "kill":
    if not found:
        end(113, "Could not find service")
    if not alive(found["pid"]):
        end(3, "No process to signal.")
    os.kill(found["pid"], getattr(signal, rest[0]))
    end(0)
if verb == "bootout":
    if not found:
        end(3, "Boot-out failed: 3: No such process")
    if not alive(found["pid"]):
        job(target).unlink()
        end(0)
    (FOLDER / "booted-out-running").touch()
    os.kill(found["pid"], signal.SIGTERM)
    job(target).write_text(json.dumps({**found, "going": True}))
    end(36, "Boot-out failed: 36: Operation now in progress")
end(64, "Unrecognized subcommand")
"""

_SYSTEMCTL = """
import shlex, socket, tempfile

scope = [each for each in arguments if each.startswith("--")]
verb, *rest = [each for each in arguments if not each.startswith("--")]
unit = Path(os.environ["HOME"]) / ".config/systemd/user" / (rest[0] if rest else "")
pid_path = FOLDER / "pid"
pid = int(pid_path.read_text()) if pid_path.exists() else 0
enabled = FOLDER / "enabled"

def keys():
    lines = unit.read_text().splitlines()
    return dict(each.split("=", 1) for each in lines if "=" in each and each[0] != "#")

if "--user" not in scope:
    end(1, "Failed to connect to bus: No such file or directory")
if verb == "show":
    end(0, "Version=252")
if verb == "daemon-reload" or verb == "reset-failed":
    end(0)
link = unit.parent / "default.target.wants" / unit.name
if verb == "enable":
    enabled.touch()
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(unit)
    end(0)
if verb == "disable":
    enabled.unlink(missing_ok=True)
    if not link.is_symlink() and not unit.exists():
        end(1, "Failed to disable unit: Unit file bulkhead.service does not exist.")
    link.unlink(missing_ok=True)
    end(0)
if verb == "is-enabled":
    end(0 if enabled.exists() else 1)
if verb == "stop":
    if pid and alive(pid):
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + int(keys()["TimeoutStopSec"])
        while alive(pid):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                end(1, "Timed out")
            time.sleep(0.05)
    end(0)
if verb == "start":
    if pid and alive(pid):
        end(0)
    wanted = keys()
    with tempfile.TemporaryDirectory(prefix="sd-", dir="/tmp") as folder:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
            notified.bind(f"{folder}/notify")
            notified.settimeout(0.1)
            line = wanted["ExecStart"].replace("%%", "%").replace("$$", "$")
            variables = dict(
                each.split("=", 1) for each in shlex.split(wanted["Environment"].replace("%%", "%"))
            )
            with (FOLDER / "journal").open("ab") as log:
                process = subprocess.Popen(
                    shlex.split(line),
                    env={**os.environ, **variables, "NOTIFY_SOCKET": f"{folder}/notify"},
                    cwd=wanted["WorkingDirectory"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            pid_path.write_text(str(process.pid))
            with (FOLDER / "pids").open("a") as pids:
                pids.write(f"{process.pid}\\n")
            while process.poll() is None:
                try:
                    if "READY=1" in notified.recv(65536).decode().splitlines():
                        end(0)
                except TimeoutError:
                    pass
    end(1, "Job for bulkhead.service failed because the control process exited with error code.")
end(1, f"Unknown command verb {verb}.")
"""

_JOURNALCTL = """
print(" ".join(arguments))
"""


class ServiceManagers:
    """Their programs in a folder for the front of PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "programs"
        self.programs.mkdir(parents=True)
        for name, code in (
            ("launchctl", _LAUNCHCTL),
            ("systemctl", _SYSTEMCTL),
            ("journalctl", _JOURNALCTL),
        ):
            path = self.programs / name
            common = _COMMON.format(folder=str(folder))
            # Isolated: what is put in the way of Python elsewhere is not for these.
            path.write_text(f"#!{sys.executable} -IS\n{common}{code}", "utf-8")
            path.chmod(0o755)

    @property
    def path(self) -> str:
        """A PATH with them in front."""
        return os.pathsep.join([str(self.programs), os.environ["PATH"]])

    @property
    def calls(self) -> list[list[str]]:
        """The command lines so far, without the program."""
        path = self.folder / "calls"
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def forget_calls(self) -> None:
        (self.folder / "calls").unlink(missing_ok=True)

    def fail(self, call: str, status: int, says: str, times: int = 1) -> None:
        """Let the next calls that begin so fail."""
        rule = {"call": call, "status": status, "says": says, "times": times}
        (self.folder / "rules").write_text(json.dumps([rule]), "utf-8")

    def be_headless(self, prints: int = 125, bootstraps: int = 125) -> None:
        """Nobody is logged in at the screen, which gives these exit statuses: they differ between
        versions of macOS. If `bootstraps` is 0, nothing is done and nothing said.
        """
        (self.folder / "headless").write_text(json.dumps([prints, bootstraps]), "utf-8")

    def log_in(self) -> None:
        """Somebody logs in at the screen."""
        (self.folder / "headless").unlink()

    @property
    def booted_out_running(self) -> bool:
        """Whether launchd was told to end a process that still ran."""
        return (self.folder / "booted-out-running").exists()

    def close(self) -> None:
        """End what they have started and is left."""
        path = self.folder / "pids"
        for pid in map(int, path.read_text().split() if path.exists() else ()):
            try:
                process = psutil.Process(pid)
                if str(self.folder.parent) in " ".join(process.cmdline()):
                    process.send_signal(signal.SIGKILL)
            except psutil.Error:
                continue


def verified(unit: Path) -> subprocess.CompletedProcess[str] | None:
    """What systemd itself says of a unit; None where it isn't installed."""
    program = shutil.which("systemd-analyze")
    if program is None:
        return None
    return subprocess.run(
        [program, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
