# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Each mutant can be put in: a fault that no longer fits its source tests nothing."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

from hallway_lab.paths import REPO

SCRIPTS = "tests/module/mutants", "tests/ring/mutants"


def fit() -> list[str]:
    """The text that a mutant replaces stands in each file that it names."""
    findings = []
    for script in SCRIPTS:
        loader = SourceFileLoader("mutants", str(REPO / script))
        spec = spec_from_loader("mutants", loader)
        assert spec
        module = module_from_spec(spec)
        loader.exec_module(module)
        for name, files, old, *_ in module.MUTANTS:
            findings += [
                f"{script}: {name}: {file} no longer has {old!r}: write the mutant again"
                for file in files.split()
                if old not in (REPO / "kmod" / file).read_text()
            ]
    return findings
