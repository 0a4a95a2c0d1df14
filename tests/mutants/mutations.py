"""Small faults in a module's source: each changes one place of its syntax tree, as a slip of a hand would."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.USub: ast.UAdd,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_PAIRS = [("min", "max"), ("any", "all"), ("amin", "amax"), ("argmin", "argmax"), ("sum", "mean")]
_NAMES = {a: b for pair in [*_PAIRS, ("zeros", "ones")] for a, b in (pair, pair[::-1])}
#: What derives randomness: each of their arguments is there so that some two draws differ.
_SEEDED = {"derive", "generator", "seeded", "default_rng"}

#: Calls whose arguments no test can see: facts for the docs, what mypy holds, how much memory is used.
_UNSEEN = {"Paper", "dataclass", "rows_at_a_time"}


@dataclass(frozen=True)
class Mutation:
    """One change of a tree: ``what`` it does to the source line ``text``, and ``apply``, which does it."""

    line: int
    text: str
    what: str
    apply: Callable[[], None]

    def __str__(self) -> str:
        return f"{self.line}: {self.text}    [{self.what}]"


def mutations(source: str) -> list[Mutation]:
    """All changes of a module, in the order of the source; each is made in a tree that they share."""
    return _listed(source, ast.parse(source))


def mutated(source: str, number: int) -> ast.Module:
    """The tree with one of its mutations made."""
    tree = ast.parse(source)
    _listed(source, tree)[number].apply()
    return ast.fix_missing_locations(tree)


def _listed(source: str, tree: ast.Module) -> list[Mutation]:
    lines = source.splitlines()
    return [
        Mutation(node.lineno, lines[node.lineno - 1].strip(), what, apply)
        for node in _reached(tree)
        for what, apply in _changes(node)
    ]


def _reached(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Expressions and statements whose change is a fault: no types, no messages, no papers."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Raise | ast.Assert | ast.JoinedStr):
                continue
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.Call) and _name(child.func) in _UNSEEN:
                continue
            # A strict zip is a guard against what cannot be, and equal to a lax one wherever lengths agree.
            if isinstance(child, ast.keyword) and child.arg == "strict":
                continue
            if isinstance(child, ast.expr | ast.stmt):
                yield child
            yield from _reached(child)


def _changes(node: ast.expr | ast.stmt) -> Iterator[tuple[str, Callable[[], None]]]:
    match node:
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.BoolOp(op=op) if type(op) in _OPERATORS:
            yield _swap(node, "op", op)
        case ast.UnaryOp(op=ast.USub() as op):
            yield _swap(node, "op", op)
        case ast.UnaryOp(op=ast.Not() | ast.Invert() as op, operand=operand):
            yield f"no {type(op).__name__.lower()}", _set(node, "operand", ast.UnaryOp(op, operand))
        case ast.Compare(ops=[op]) if type(op) in _OPERATORS:
            other = _OPERATORS[type(op)]()
            yield _words(op, other), _set(node, "ops", [other])
        case ast.Constant(value=bool() as value):
            yield f"{value} is {not value}", _set(node, "value", not value)
        case ast.Constant(value=int() | float() as value):
            other = (value * 2 or 1.0) if isinstance(value, float) else (value - 1 if value else 1)
            yield f"{value} is {other}", _set(node, "value", other)
        case ast.If() | ast.IfExp():
            yield "never", _set(node, "test", ast.Constant(False))
            yield "always", _set(node, "test", ast.Constant(True))
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            for part in node.generators:
                if part.ifs:
                    yield f"without if {ast.unparse(part.ifs[0])}", _set(part, "ifs", [])
        case ast.Expr(value=ast.Call() as call):
            yield f"without {ast.unparse(call)[:40]}", _set(node, "value", ast.Constant(None))
        case ast.Call(func=func, args=args, keywords=keywords):
            yield from _changed_call(node, _name(func), args, keywords)


def _changed_call(
    node: ast.Call, name: str, args: list[ast.expr], keywords: list[ast.keyword]
) -> Iterator[tuple[str, Callable[[], None]]]:
    if name in _NAMES:
        field = "attr" if isinstance(node.func, ast.Attribute) else "id"
        yield f"{name} is {_NAMES[name]}", _set(node.func, field, _NAMES[name])
    if name in _SEEDED and len(args) > 1:
        for i, part in enumerate(args):
            yield f"a seed without {ast.unparse(part)}", _set(node, "args", args[:i] + args[i + 1 :])
    if any(keyword.arg == "generator" for keyword in keywords):
        yield "no generator", _set(node, "keywords", [k for k in keywords if k.arg != "generator"])


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))


def _swap(node: ast.AST, field: str, op: ast.AST) -> tuple[str, Callable[[], None]]:
    other = _OPERATORS[type(op)]()
    return _words(op, other), _set(node, field, other)


def _words(op: ast.AST, other: ast.AST) -> str:
    return f"{type(op).__name__} is {type(other).__name__}"


def _set(node: ast.AST, field: str, value: object) -> Callable[[], None]:
    return lambda: setattr(node, field, value)
