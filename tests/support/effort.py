"""How many examples hypothesis tries: all of them, or a quarter in a quick run."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # a busy machine is no failure
settings.register_profile("quick", deadline=None, max_examples=25)


def examples(count: int) -> int:
    """Return `count`, and a quarter of it under the profile of quick runs."""
    return max(count * settings.default.max_examples // 100, 1)
