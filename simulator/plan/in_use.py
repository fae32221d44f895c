"""Plans that are in use, so that an equal one need not be made, nor what follows from it derived, again."""

from weakref import WeakValueDictionary

from simulator.plan.plan import Plan


class PlansInUse(WeakValueDictionary[tuple, Plan]):
    """Plans that somebody still holds, by what they were made from. Other processes receive none of them."""

    def __reduce__(self) -> tuple[type["PlansInUse"], tuple[()]]:
        """Pickle as an empty one."""
        return PlansInUse, ()
