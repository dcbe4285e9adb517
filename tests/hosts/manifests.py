"""What `retort launch --dry-run` prints, as trees, and where it breaks Kubernetes' own types: those
of its client for Python, which are generated from the API's description. Unknown fields, missing
ones and other types are errors there, as in an API server's strict check.

Needs PyPI's kubernetes and PyYAML: in RETORT_KUBERNETES_PYTHON, which `./dev test` sets, or in the
Python that runs this."""
import os
import subprocess
import sys

PYTHON = "RETORT_KUBERNETES_PYTHON"
KINDS = {"v1": ("Secret", "ConfigMap", "Service"), "batch/v1": ("Job",)}  # of a run


def run_with_types():
    """Goes on in the Python that has the types, if this one does not."""
    named = os.environ.get(PYTHON)
    if named and os.path.abspath(named) != os.path.abspath(sys.executable):
        os.execv(named, [named, *sys.argv])


def why_not():
    """What is missing; "" if nothing is."""
    try:
        import kubernetes.client  # noqa: F401
        import yaml  # noqa: F401
    except ImportError as error:
        return f"{error}; {PYTHON} names a Python with PyPI's kubernetes and PyYAML"
    return ""


def read(text):
    import yaml
    return [tree for tree in yaml.safe_load_all(text) if tree is not None]


def printed(program, recipe, *arguments):
    """What the program prints of a recipe."""
    done = subprocess.run([program, "launch", recipe, "--dry-run", *arguments],
                          capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return done.stdout


def errors_of(tree):
    """Everything that is wrong with one object, by its place."""
    import kubernetes.client
    import pydantic
    version, kind = tree.get("apiVersion"), tree.get("kind")
    if kind not in KINDS.get(version, ()):
        return [f"{version} {kind} is no object of a run"]
    try:
        getattr(kubernetes.client, f"V1{kind}").model_validate(tree)
    except pydantic.ValidationError as error:
        return [f"{kind}.{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
    return []
