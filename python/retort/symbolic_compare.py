"""Whether two formulas that retort.symbolic_formula has read are the same."""


def compare(a, b):
    """Whether two values that `read` gave are the same: True, False, or None for unknown."""
    if isinstance(a, tuple) != isinstance(b, tuple):
        return False
    if not isinstance(a, tuple):
        return _same(a, b)
    (shape, parts), (wanted_shape, wanted) = a, b
    if shape != wanted_shape or len(parts) != len(wanted):
        return False
    if shape == "=":
        return _same_equation(parts[0], wanted[0])
    if shape == "{}":
        return _same_set(list(parts), list(wanted))
    found = [compare(x, y) for x, y in zip(parts, wanted)]
    return False if False in found else None if None in found else True


def _same_set(parts, wanted):
    for part in parts:
        found = [compare(part, other) for other in wanted]
        if True in found:
            del wanted[found.index(True)]
        else:
            return None if None in found else False
    return True


def _same_equation(a, b):
    """Whether two left sides of `... = 0` are the same but for a factor that is a number."""
    import sympy

    if a == 0 or b == 0:
        return bool(a == b)
    ratio = sympy.simplify(a / b)
    if ratio.is_number and ratio.is_finite:
        return True
    return None if ratio.is_number else False


def _same(a, b):
    import sympy

    if a == b:
        return True
    if a in (sympy.oo, -sympy.oo) or b in (sympy.oo, -sympy.oo):
        return False
    difference = a - b
    if difference == 0:
        return True
    # A place where they differ refutes it; none of a few proves nothing.
    if _differs_somewhere(a, b):
        return False
    for simpler in (sympy.expand, sympy.simplify, sympy.trigsimp, sympy.radsimp):
        if simpler(difference) == 0:
            return True
    return None


def _differs_somewhere(a, b):
    import sympy

    unknowns = sorted(a.free_symbols | b.free_symbols, key=str)
    for start in (sympy.Rational(37, 29), sympy.Rational(-53, 31), sympy.Rational(7, 61)):
        # Places without a pattern, the same in each run.
        place = {x: start * (i + 1) + sympy.Rational(i * i, 17) for i, x in enumerate(unknowns)}
        left, right = (sympy.N(side.subs(place), 40) for side in (a, b))
        if not (left.is_number and right.is_number and left.is_finite and right.is_finite):
            continue
        scale = max(abs(left), abs(right), 1)
        if abs(left - right) > scale * sympy.Float("1e-25", 40):
            return True
    return False
