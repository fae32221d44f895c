"""Base classes of the JSON documents that commands print and save."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from traces.errors import UnusableFileError
from traces.files import first_fault, read_document, write_json

#: No time in a document is longer, in seconds: far beyond any step, and small enough for sums, products and other units.
LONGEST_S = 1e60
#: Seconds from some origin, a length (zero if a period ended before the previous one), and a duration that is not zero.
Seconds = Annotated[float, Field(ge=-LONGEST_S, le=LONGEST_S, allow_inf_nan=False, strict=True)]
Length = Annotated[float, Field(ge=0, le=LONGEST_S, allow_inf_nan=False, strict=True)]
Duration = Annotated[float, Field(gt=0, le=LONGEST_S, allow_inf_nan=False, strict=True)]
#: A number of bytes.
Bytes = Annotated[int, Field(ge=0, strict=True)]


class Data(BaseModel):
    """Part of a document. Its numbers are finite."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class Document(Data):
    """A JSON object with a "schema" that can be saved to a file and loaded from one."""

    schema_name: ClassVar[str]
    kind: ClassVar[str]

    def document(self) -> dict[str, Any]:
        """The JSON object that `--json` prints."""
        return {"schema": self.schema_name, **self.model_dump(mode="json")}

    def save(self, path: Path | str) -> Path:
        """Write as JSON, compressed with gzip if the name ends in .gz."""
        return write_json(path, self.document(), indent=1)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a file written by `save`. Raises UnusableFileError for any other file."""
        document = read_document(path, cls.kind, cls.schema_name)
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            raise UnusableFileError(f"{cls.kind} {path} is damaged {first_fault(error)}; make it again") from error
