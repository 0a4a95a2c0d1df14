"""Write requirements/*.txt with uv: pins with the hashes of all wheels, for every Python and system.

Pins stay, but for those of the packages that are named as arguments; ``all`` renews all.
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: The extras that have a file, and the file that it includes.
BASES = {"docs": "opencil", "test": "docs", "dev": "test", "mutants": "test"}
CUDA = re.compile(r"nvidia-|cuda-|triton=")  # what torch needs where it is no CPU build
CPU_BUILDS = os.environ.get("TORCH_CPU_INDEX")  # address of the index of PyTorch's CPU builds


def read(text: str) -> dict[str, list[str]]:
    """Return the hashes of each pin, a name with version and marker."""
    blocks = re.findall(r"^(\w[^\\\n]*) \\\n((?:    --hash=.*\n)+)", text, re.MULTILINE)
    return {pin: re.findall(r"sha256:\w+", hashes) for pin, hashes in blocks}


def write(name: str, pins: dict[str, list[str]], head: str = "") -> None:
    """Write a file of pins."""
    blocks = [" \\\n    --hash=".join([pin, *sorted({*hashes})]) for pin, hashes in sorted(pins.items())]
    text = "\n".join([f"# Made by `make lock`.\n{head}".rstrip(), *blocks, ""])
    (FOLDER / f"{name}.txt").write_text(text, encoding="utf-8")


def compile_pins(*words: str, stdin: str = "setuptools>=77") -> dict[str, list[str]]:
    """Return what uv resolves."""
    options = (
        "--universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-config --quiet"
    )
    command = ["uv", "pip", "compile", "-", *options.split(), *words]
    return read(subprocess.check_output(command, cwd=ROOT, input=stdin, text=True))


def main() -> None:
    """Write all files."""
    before = "".join(path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.txt")))
    known = {pin: pin.split("==")[0] for pin in read(before) if "+cpu" not in pin}
    kept = [pin for pin, name in known.items() if not {name, "all"} & {*sys.argv[1:]}]
    with tempfile.TemporaryDirectory() as folder:
        pinned = Path(folder, "pinned.txt")
        pinned.write_text("\n".join(kept), encoding="utf-8")
        source = ("pyproject.toml", "--constraints", str(pinned))
        # All at once first: files agree on versions.
        everything = compile_pins(*source, *(word for extra in BASES for word in ("--extra", extra)))
        pinned.write_text("\n".join(everything), encoding="utf-8")
        pins = {"opencil": compile_pins(*source)}
        pins |= {extra: compile_pins(*source, "--extra", extra) for extra in BASES}

    (torch,) = (pin for pin in everything if pin.startswith("torch=="))
    cpu = f"{torch}+cpu"
    if CPU_BUILDS:
        built = compile_pins("--default-index", CPU_BUILDS, "--no-deps", stdin=cpu)
    elif cpu not in (built := read(before)):
        sys.exit(
            f"no hashes of {cpu} are known: $TORCH_CPU_INDEX should name the index of PyTorch's CPU builds"
        )
    write("torch-cpu", {cpu: built[cpu]})
    write("torch", {torch: everything[torch]})
    del pins["opencil"][torch]
    cuda = {pin: pins["opencil"].pop(pin) for pin in [*pins["opencil"]] if CUDA.match(pin)}
    write("cuda", cuda)
    write("opencil", pins["opencil"])
    listed = {"opencil": {*pins["opencil"]}}
    for extra, base in BASES.items():
        # Triton, which tests need, is among what torch needs.
        named = {re.split(r"\W", line)[0] for line in PROJECT["optional-dependencies"][extra]}
        added = {
            pin: hashes
            for pin, hashes in pins[extra].items()
            if pin not in listed[base] | {torch} and (pin not in cuda or pin.split("==")[0] in named)
        }
        listed[extra] = listed[base] | added.keys()
        write(extra, added, f"-r {base}.txt\n")


if __name__ == "__main__":
    main()
