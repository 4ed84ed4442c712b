"""The caged reader: a question as JSON on standard input, one answer as JSON on standard output.

    python -I -B …/catalog/intake/__main__.py < question.json

Everything is imported before the cage closes; after that nothing but reading the named files is left.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import msgspec

from berth.catalog.intake import cage
from berth.catalog.intake.judge import judge
from berth.catalog.intake.refused import Refused
from berth.catalog.intake.verdict import Answer, Fault, Question


def main() -> int:
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    cage.enter()
    sys.stdout.buffer.write(msgspec.json.encode(answer(question)))
    sys.stdout.buffer.flush()
    return 0


def answer(question: Question) -> Answer:
    try:
        files = {name: Path(place) for name, place in question.files.items()}
        return Answer(verdict=judge(files, question.base))
    except Refused as why:
        return Answer(fault=Fault(why.code, why.message, why.file, why.params))
    except (MemoryError, RecursionError):
        return Answer(fault=TOO_MUCH)
    except OSError as error:
        return Answer(fault=Fault("file_unreadable", f"a file cannot be read ({error.strerror}).", None))


TOO_MUCH = Fault("too_expensive", "reading its header takes more memory or time than any real model's.", None)

if __name__ == "__main__":
    sys.exit(main())
