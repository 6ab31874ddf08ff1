"""A report in one line, for a chat: the verdict, and nothing else."""

from iobench.report.document import Document, Sentence


class ChatRenderer:
    """Says what is concluded of each run."""

    def render(self, document: Document) -> str:
        """Return the verdict of each run behind its name."""
        return "".join(
            f"{part.title}: {block.text}\n"
            for part in document.parts or (document,)
            for section in part.sections
            if section.key == "verdict"
            for block in section.blocks[:1]
            if isinstance(block, Sentence)
        )
