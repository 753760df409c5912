"""`albertkit doctor`."""

from pathlib import Path


def doctor(folder: Path | None = None, /, *, markdown: bool = False, json: bool = False) -> int:
    """Show what this machine and this installation can do, what is missing and how to get it.

    Exit status 1 if a package of the core is missing, outside its versions or broken.

    Args:
        folder: Look at files instead: are runs, stores and prepared clips below it what was written? Everything with checksums
            is read: about a second for a gigabyte.
        markdown: Print Markdown to paste into an issue.
        json: Print one JSON object.
    """
    if folder is not None:
        from albertkit.cli.printing import print_result
        from albertkit.intact import check_files

        print_result(check_files(folder).to_dict(), json)
        return 0
    from albertkit.report.doctor_text import print_doctor

    return print_doctor(markdown=markdown, as_json=json)
