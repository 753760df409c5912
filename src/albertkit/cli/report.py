"""albertkit report"""

from pathlib import Path


def report(run: Path, /, *, out: Path | None = None, json: bool = False) -> None:
    """One HTML page about a run: curves, results with intervals, examples, sizes, settings, provenance, versions.

    Any run: of pretraining, fine-tuning, sentence embeddings or captioning, finished or not.

    Args:
        run: Folder of the run.
        out: HTML file; it needs no server and no network. Default: report.html in the run.
        json: Print one JSON object.
    """
    from albertkit.cli.printing import print_result
    from albertkit.report.run_report import write_run_report

    print_result(write_run_report(run, out).to_dict(), json)
