"""Values from outside the file, laid over its nodes: `--set PATH=VALUE` wins, SBATCH_* variables fill gaps.

They become nodes before the file is read, so one walk reports all problems alike. Their values are text, never YAML.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleetctl.spec.compose import Mapping, Node, Scalar
from fleetctl.spec.model import Spec
from fleetctl.spec.problems import Place, Problems, guess, printable
from fleetctl.spec.shape import Shape, fields
from fleetctl.spec.walk import is_nothing


def override(root: Node, assignment: str, problems: Problems) -> Node:
    """The tree with one `PATH=VALUE` of --set applied."""
    path, equals, value = assignment.partition("=")
    place = Place(f"--set {printable(path, limit=100)}")
    if not equals:
        problems.add(place, "", "expected PATH=VALUE, such as resources.nodes=4")
        return root
    parts = _resolve(path, place, problems)
    return _put(root, parts, Scalar(place, value)) if parts else root


def fill(root: Node, path: str, value: tuple[str, str], problems: Problems) -> Node:
    """The tree with a default at `path`, unless something is there; `value` is the text and where it came from."""
    text, source = value
    parts = _resolve(path, Place(source), problems)
    return _put(root, parts, Scalar(Place(source), text), only_gaps=True) if parts else root


def _resolve(path: str, place: Place, problems: Problems) -> Sequence[str]:
    """The parts of a path to one scalar; none, and a problem, if it leads elsewhere."""
    shape, names, parts = Shape(Spec), path.split("."), []
    while names:
        name = names.pop(0)
        if struct := shape.struct():
            known = fields(struct)
            if name not in known:
                problems.add(place, path, f"no such field; {guess(name, known)}")
                return ()
            shape = known[name].shape
            parts.append(name)
        elif pair := shape.pair():
            parts.append(".".join((name, *names)))
            shape, names = pair[1], []
        elif shape.element():
            break
        else:
            problems.add(place, path, f"no such field; {'.'.join(parts)} has no fields")
            return ()
    return parts if _settable(shape, place, path, problems) else ()


def _settable(shape: Shape, place: Place, path: str, problems: Problems) -> bool:
    """Whether one text can be the value."""
    if struct := shape.struct():
        problems.add(place, path, f"expected one of its fields, such as {path}.{next(iter(fields(struct)))}")
    elif shape.pair():
        problems.add(place, path, f"expected one of its names, such as {path}.NAME")
    elif shape.element():
        problems.add(place, path, "expected a field of one value; write a list in the file")
    else:
        return True
    return False


def _put(node: Node, parts: Sequence[str], leaf: Scalar, *, only_gaps: bool = False) -> Node:
    """The node with `leaf` under `parts`; mappings on the way are copied, or made. What is no mapping is left as it
    is: the walk reports it."""
    if not parts:
        return node if only_gaps and not is_nothing(node) else leaf
    if is_nothing(node):
        node = Mapping(leaf.place, ())
    if not isinstance(node, Mapping):
        return node
    pairs, name, rest = list(node.pairs), parts[0], parts[1:]
    for index, (key, value) in enumerate(pairs):
        if isinstance(key, Scalar) and key.text == name:
            pairs[index] = (key, _put(value, rest, leaf, only_gaps=only_gaps))
            break
    else:
        pairs.append((Scalar(leaf.place, name), _put(_nothing(leaf.place), rest, leaf, only_gaps=only_gaps)))
    return Mapping(node.place, tuple(pairs), node.tag)


def _nothing(place: Place) -> Scalar:
    return Scalar(place, "", plain=True)
