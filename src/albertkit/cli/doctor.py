"""`albertkit doctor`."""


def doctor(*, markdown: bool = False, json: bool = False) -> int:
    """Show what this machine and this installation can do, what is missing and how to get it.

    Exit status 1 if a package of the core is missing, outside its versions or broken.

    Parameters
    ----------
    markdown
        Print Markdown to paste into an issue.
    json
        Print one JSON object.
    """
    from albertkit.report.doctor_text import print_doctor

    return print_doctor(markdown=markdown, as_json=json)
