"""Godwit sits in every Python process of a job image: what it costs there must be next to nothing."""

import subprocess
import sys

import pytest


def loaded(statement: str, **environment: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after this statement."""
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    command = [sys.executable, "-c", program]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return set(answer.stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        *("godwit.extractor.manifest", "godwit.extractor.journal", "godwit.extractor.values"),
        "godwit.planrewrite.select",
    ],
)
def test_reading_state_never_imports_pyspark(module: str) -> None:
    modules = loaded(f"import {module}")
    assert module in modules
    assert not modules & {"pyspark", "py4j"}


def test_the_command_line_never_imports_pyspark() -> None:
    assert not loaded("import godwit.orchestrator.cli") & {"pyspark", "py4j"}


def test_an_interpreter_without_a_job_does_not_load_godwit() -> None:
    assert not [module for module in loaded("pass") if module.startswith("godwit.")]


def test_an_interpreter_with_a_job_is_activated_but_does_not_load_pyspark() -> None:
    modules = loaded("pass", GODWIT_JOB="j", GODWIT_STORE="file:///nowhere")
    assert "godwit.extractor.activate" in modules
    assert "pyspark" not in modules
