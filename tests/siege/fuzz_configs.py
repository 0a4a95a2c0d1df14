"""Configs that somebody, or something, may write.

``python -m tests.siege.fuzz_configs --count 10000 --seed 1``. Whole and valid ones are changed in their keys,
values, types and structure, in the letters of their text and in the bytes of their file; ``--set`` has keys
that exist, or nearly, and odd values. What is taken must give the same config again when it is printed.
"""

import copy
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from opencil.config import Config, config_keys, list_benchmarks, parse_yaml, read_yaml, resolve
from opencil.validation import flat
from tests.siege.fuzz import Input, main

Random = random.Random

VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**30, -(10**30), 10**99),
    *(0.0, -0.0, 0.5, 1.5, 1e-320, 1e308, float("inf"), float("-inf"), float("nan")),
    *(
        "",
        " ",
        "0",
        "1e5",
        "yes",
        "null",
        "~",
        "~nobody/x",
        "all",
        "*",
        "paper",
        "@",
        "icarl@",
        "@x",
        "ber@nter",
    ),
    *(
        "icarl",
        "icarl,wa",
        "energy",
        "digits",
        "cifar100",
        "noise",
        "resnet8",
        "run",
        "auto",
        "cpu",
        "cuda:99",
    ),
    *(
        "2GB",
        "-3GB",
        "9" * 5000,
        "50+10",
        "20-20-10",
        "1-" * 2000 + "1",
        "10-" * 3000 + "1+1",
        "²",
        "٣",
        "é" * 300,
    ),
    *(
        "/dev/null",
        "/dev/zero",
        "/dev/full",
        "..",
        "../..",
        "/",
        "\0",
        "a\0b",
        "\ud800",
        "\x1b[31m",
        "\n",
        "a\nb",
    ),
    *("x" * 300, "x" * 20_000, "{{}}", "%s%n", "$(id)", "=1+1", "2024-01-02", "12:30:45", "0x1F", "1_000"),
    *([], [[]], [None], [0, 0], ["a", "a"], [1, "a", None], list(range(3000)), ["noise"] * 2000, [[[[[]]]]]),
    *(
        {},
        {"": {}},
        {"name": None},
        {"a": {"b": {"c": {}}}},
        {1: 2},
        {None: None},
        {"*": {}},
        {"name": "resnet8"},
    ),
]
TEXTS = [
    *(
        ":",
        ": ",
        "- ",
        "? ",
        "[",
        "]",
        "{",
        "}",
        ",",
        "#",
        "&a ",
        "*a",
        "<<: ",
        "<<: *a",
        "!",
        "!!",
        "!!bool ",
    ),
    *("!!int ", "!!float ", "!!timestamp ", "!!str ", "!!map ", "!!seq ", "!!set ", "!!null ", "!!binary "),
    *(
        "!!python/object:os.system ",
        "!<tag:yaml.org,2002:int> ",
        "|\n",
        ">-\n",
        "'",
        '"',
        "%YAML 1.1\n",
        "---\n",
    ),
    *(
        "...\n",
        "\t",
        "\r",
        "\r\n",
        "\0",
        "\ufeff",
        "\u2028",
        "\x85",
        "\x7f",
        "\ud800",
        "é",
        "😀",
        "\\",
        "@",
        "`",
    ),
    *(
        "0x",
        "1e",
        "1:" * 3000 + "1",
        "9" * 5000,
        "[" * 2000,
        "{a: " * 500,
        "- " * 500,
        "? " * 500,
        "=",
        "null: ",
    ),
    *(
        '"\\U00110000"',
        '"\\UFFFFFFFF"',
        "%YAML 1." + "9" * 5000 + "\n---\n",
        "!!int {=: 5}",
        "!!merge x: ",
        '"\\0"',
        '"\\ud800"',
        '"\\x',
        "[]",
        "{}",
        "\n",
        "\n ",
        "\n  ",
        "    ",
        "~",
        "yes",
        "2024-99-99",
        "a: &b [*b]",
    ),
]
BOMB = "\n".join(
    ["{0}:", "  a: &a [x, x, x, x, x, x, x, x, x]"]
    + [f"  {b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)]
)


def _small(content: Any, **more: Any) -> dict[str, Any]:
    return {"benchmark": content, "cil": ["icarl"], "detector": {"energy": {"temperature": 2.0}}, **more}


@cache
def bases() -> list[dict[str, Any]]:
    """Configs that are valid."""
    sets = [{"name": "noise", "role": "far"}, {"name": "dim", "role": "shifted", "severities": [5]}]
    own = {"path": "birds", "train": "train", "test": "test", "layout": "folders"}
    few = {"cil": ["icarl", "bic"], "detector": ["msp", "ber", "odin"]}
    return [
        {},
        _small("digits", seed=[0, 1], metric=["oscr"]),
        _small({"name": "digits", "sets": sets}, training={"precision": "fp32"}),
        _small({"name": "digits", "classes_per_step": [2, "4-2-2"], "memory": 80}, place={"pack": 2}),
        _small({"name": "digits", "backbone": {"name": "resnet32", "freeze": True}}),
        _small({"name": "digits", "shifted": {"mine": {"corruptions": ["fog"], "seed": 3}}}),
        _small(
            {"name": "digits", "id": "birds", "datasets": {"birds": own}}, seed={"runs": [1], "data_order": 5}
        ),
        {"benchmark": "digits", "cil": {"*": {"epochs": 3}, "icarl": {}}, "detector": ["ber@nter", "energy"]},
        *(yaml.safe_load(resolve({"benchmark": name}, **few).to_yaml()) for name in list_benchmarks()),
    ]


@cache
def keys() -> list[str]:
    """Every key that can be set."""
    return sorted(".".join(key) for key in config_keys())


def value(random: Random) -> Any:
    """Something odd, or something common."""
    return copy.deepcopy(random.choice(VALUES))


def near(random: Random, given: Any) -> Any:
    """A value that may well be allowed where another one is."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        return given
    return random.choice([given + 1, given - 1, given * 2, given // 2, given / 2, -given])


def word(random: Random, text: str) -> str:
    """A word, misspelt or worse."""
    at = random.randrange(len(text) + 1)
    changed = [
        text[:at] + text[at + 1 :],
        text[:at] + random.choice("aZ0_-.@* \n\0é") + text[at:],
        text.upper(),
        text * random.choice([0, 2, 200]),
        text + random.choice(["@x", ".x", "*", " "]),
        random.choice(random.choice(keys()).split(".")),
    ]
    return random.choice(changed)


def spots(content: Any) -> list[tuple[Any, Any]]:
    """Every place in a content: what it lies in, and under which key."""
    pairs = list(content.items() if isinstance(content, dict) else enumerate(content))
    below = [spot for _, inner in pairs if isinstance(inner, dict | list) for spot in spots(inner)]
    return [(content, key) for key, _ in pairs] + below


def change(random: Random, content: dict[str, Any]) -> None:
    """Change a content in one place."""
    places = spots(content)
    if not places:
        content[random.choice(["cil", "detector", "seed", "place", "x", 3])] = value(random)
        return
    inside, key = random.choice(places)
    kind = random.randrange(9)
    if kind == 0:
        inside[key] = near(random, inside[key])
    elif kind <= 2:
        inside[key] = value(random)
    elif kind == 3:
        del inside[key]
    elif kind == 4 and isinstance(inside, dict):
        renamed = random.choice([word(random, str(key)), word(random, str(key)), None, 3, 1.5, True, ""])
        inside[renamed] = inside.pop(key)
    elif kind == 5:
        inside[key] = random.choice([[inside[key]], {"x": inside[key]}, {key: inside[key]}, str(inside[key])])
    elif kind == 6:
        other, elsewhere = random.choice(places)
        inside[key], other[elsewhere] = copy.deepcopy(other[elsewhere]), copy.deepcopy(inside[key])
    elif kind == 7:
        for _ in range(random.choice([2, 30, 60])):
            inside[key] = random.choice([[inside[key]], {"x": inside[key]}])
    elif isinstance(inside[key], list):
        inside[key] = inside[key] * random.choice([0, 2, 300])
    elif isinstance(inside[key], str):
        inside[key] = word(random, inside[key])


def retyped(random: Random, text: str) -> str:
    """A text with a few letters changed, lost, doubled or put in."""
    for _ in range(random.choice([1, 1, 2, 5, 20])):
        at, length = random.randrange(len(text) + 1), random.choice([1, 1, 3, 20, 200])
        kind = random.randrange(7)
        if kind <= 1:
            text = text[:at] + random.choice(TEXTS) + text[at:]
        elif kind == 2:
            text = text[:at] + text[at + length :]
        elif kind == 3:
            text = text[:at] + text[at : at + length] * random.choice([2, 2, 50]) + text[at + length :]
        elif kind == 4:
            text = (
                text[:at]
                + chr(random.choice([random.randrange(128), random.randrange(0x3000)]))
                + text[at + 1 :]
            )
        elif kind == 5:
            lines = text.split("\n")
            random.shuffle(lines) if random.random() < 0.2 else lines.insert(
                random.randrange(len(lines) + 1), " " * random.randrange(6) + random.choice(lines).strip()
            )
            text = "\n".join(lines)
        else:
            text = text[:at]
    return text


def text_of(random: Random, content: Any) -> str:
    """A content as YML, with aliases where it holds a thing twice, or as JSON, which is YML too."""
    if random.random() < 0.2:
        return json.dumps(content, default=str)
    return yaml.safe_dump(content, default_flow_style=random.choice([None, False, True]), allow_unicode=True)


def setting(random: Random, content: dict[str, Any]) -> str:
    """A ``--set``: mostly a key that there is, often one that the content has."""
    key = random.choice([*flat(content), "seed.runs"] if random.random() < 0.5 else keys())
    if random.random() < 0.3:
        parts = key.split(".")
        at = random.randrange(len(parts))
        parts[at] = word(random, parts[at])
        key = ".".join(parts) * random.choice([1, 1, 1, 40])
    written = random.choice(
        [
            str(near(random, random.choice([1, 5, 0.5, 30]))),
            json.dumps(value(random), default=str)[:60_000],
            random.choice(TEXTS),
            retyped(random, text_of(random, value(random))),
            str(value(random)),
        ]
    )
    return key + random.choice(["=", "=", "=", "=", " = ", "", "==", ":"]) + written


def trial(random: Random, folder: Path) -> str:
    """Make a config and resolve it."""
    content, path = copy.deepcopy(random.choice(bases())), folder / "mine.yml"
    kind = random.choice(["values", "values", "text", "bytes", "settings", "both", "bomb"])
    settings: list[str] = []
    if kind in ("values", "both"):
        for _ in range(random.choice([1, 1, 2, 4])):
            change(random, content)
    if kind in ("settings", "both"):
        settings = [setting(random, content) for _ in range(random.choice([1, 1, 2]))]
    text = text_of(random, content)
    if kind == "text":
        text = retyped(random, text)
    if kind == "bomb":
        text = retyped(random, text + "\n" + BOMB.replace("{0}", random.choice(["place", "cil", "x"])))
    written = text.encode("utf-8", "surrogatepass")
    if kind == "bytes" and random.random() < 0.2:
        written = text.encode(random.choice(["utf-8-sig", "utf-16", "utf-32", "latin-1", "utf-7"]), "replace")
    elif kind == "bytes":
        array = bytearray(written)
        for _ in range(random.choice([1, 3, 30])):
            array[random.randrange(len(array))] = random.randrange(random.choice([128, 128, 256]))
        written = bytes(array)
    try:
        path.write_bytes(written)
        taken(resolve(read_yaml(path), settings=settings))
    except Exception as error:
        raise Input(kind, error) from None
    return kind


def taken(config: Config) -> None:
    """A config that is taken is printed so that it comes back."""
    assert resolve(parse_yaml(config.to_yaml(), "the printed YML")) == config, config.to_yaml()


if __name__ == "__main__":
    main("configs", trial)
