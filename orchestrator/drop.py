"""`godwit drop`: state that nobody will resume still fills a disk; forgetting it is for a person to say."""

import click

from godwit.extractor.errors import JobAlive, UsageError
from godwit.extractor.job import existing_job
from godwit.extractor.store import open_store
from godwit.orchestrator.options import job_argument, json_option, print_json, store_option


@click.command()
@job_argument
@store_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def drop(job: str, store_uri: str, yes: bool, as_json: bool) -> None:
    """Forget a job and its state; refused while it runs. JSON keys: dropped."""
    folder = existing_job(open_store(store_uri, create=False), job)
    if folder.is_alive():
        raise JobAlive(
            f"job {job} is running", next_step="move it out with `godwit migrate`, or end it, first"
        )
    if not yes:
        ask(f"Forget job {job} and all that it has stored?")
    folder.drop()
    if as_json:
        print_json({"dropped": job})
    else:
        print(f"dropped {job}")


def ask(question: str) -> None:
    """Returns if the answer is yes; nobody there to answer is a no."""
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort:
        raise UsageError("nothing was dropped", next_step="answer y, or give --yes") from None
