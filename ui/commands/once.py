"""A command that refuses an option given twice, of which only the last value would count. Imports typer alone, as the command line does."""

from collections import Counter

from typer.core import TyperCommand


class OnceCommand(TyperCommand):
    """A command whose options are given at most once, except those that take several values and those that only switch something on."""

    def parse_args(self, ctx, args: list[str]) -> list[str]:
        """See typer. Raises SchedcastError for an option that is given twice."""
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option, count in Counter(given).items():
            switch = getattr(option, "is_flag", False) and not option.secondary_opts
            if count > 1 and not switch and not getattr(option, "multiple", False) and option.param_type_name == "option":
                from traces.errors import SchedcastError

                raise SchedcastError(f"{option.opts[-1]} is given {count} times and takes one value; give it once")
        return super().parse_args(ctx, args)
