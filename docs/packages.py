"""Draws docs/packages.svg from the imports in src/codauc: python docs/packages.py.

An arrow leads from a package to one that it imports. Arrows that follow from others are left out.
"""

import ast
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src" / "codauc"
WIDTH, HEIGHT, ACROSS, DOWN = 130, 36, 180, 76


def imports():
    """For each package, the packages that its modules import."""
    names = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))
    found = {name: set() for name in names}
    for name in names:
        for path in (SOURCE / name).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("codauc."):
                    found[name].add(node.module.split(".")[1])
    return {name: (targets & set(names)) - {name} for name, targets in found.items()}


def reach(edges, name):
    """Every package that one leads to, directly or not."""
    return edges[name].union(*(reach(edges, target) for target in edges[name]))


def level(edges, name):
    """How many packages lie below one, at most."""
    return max((1 + level(edges, target) for target in edges[name]), default=0)


def needed(edges, name):
    """The imports that do not follow from others."""
    return {t for t in edges[name] if not any(t in reach(edges, o) for o in edges[name] - {t})}


def picture(edges):
    """The picture as SVG, packages above those that they import."""
    levels = {}
    for name in edges:
        levels.setdefault(level(edges, name), []).append(name)
    top, place = max(levels), {}
    for number, names in levels.items():
        for i, name in enumerate(names):
            x = 330 + (i - (len(names) - 1) / 2) * ACROSS
            place[name] = (x, 30 + (top - number) * DOWN)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 660 {60 + top * DOWN}" '
        'font-family="sans-serif" font-size="15">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        '<marker id="to" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0 8 4 0 8z" fill="#5b6572"/></marker>',
    ]
    for name in edges:
        x, y = place[name]
        for target in sorted(needed(edges, name)):
            to, below = place[target]
            side = 150 if below - y > DOWN and abs(to - x) < WIDTH else 0  # around what is between
            parts.append(
                f'<path d="M{x:g} {y + HEIGHT / 2:g}C{x + side:g} {y + 50:g} {to + side:g} '
                f'{below - 50:g} {to:g} {below - HEIGHT / 2:g}" fill="none" stroke="#5b6572" '
                f'marker-end="url(#to)"><title>{name} imports {target}</title></path>'
            )
    for name, (x, y) in place.items():
        parts.append(
            f'<rect x="{x - WIDTH / 2:g}" y="{y - HEIGHT / 2:g}" width="{WIDTH}" '
            f'height="{HEIGHT}" rx="6" fill="#e8f1f8" stroke="#0072b2"/>'
            f'<text x="{x:g}" y="{y + 5:g}" text-anchor="middle" fill="#1b2026">{name}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    (HERE / "packages.svg").write_text(picture(imports()), encoding="utf-8")
