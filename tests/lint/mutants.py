# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Each mutant can be put in: a fault that no longer fits its source tests nothing."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from itertools import starmap

from hallway_lab.paths import REPO
from hallway_tests.mutants import Misfit, Mutant, put_in

SCRIPTS = "tests/module/mutants", "tests/ring/mutants"


def fit() -> list[str]:
    """The text that a mutant replaces stands in each file that it names, as often as it says."""
    findings = []
    for script in SCRIPTS:
        loader = SourceFileLoader("mutants", str(REPO / script))
        spec = spec_from_loader("mutants", loader)
        assert spec
        module = module_from_spec(spec)
        loader.exec_module(module)
        for mutant in starmap(Mutant, module.MUTANTS):
            for file in mutant.files.split():
                try:
                    put_in((REPO / "kmod" / file).read_text(), mutant.old, mutant.new, mutant.times)
                except Misfit as misfit:
                    findings.append(f"{script}: {mutant.name}: {file}: {misfit}")
    return findings
