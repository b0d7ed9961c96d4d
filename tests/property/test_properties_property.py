"""The properties that a stream can have, and those that it cannot."""

import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbp_core.errors import InvalidRequestError
from sbp_core.properties import (
    PROPERTIES_MAX,
    PROPERTY_KEY_LENGTH_MAX,
    PROPERTY_VALUE_BYTES_MAX,
    checked_properties,
)

KEY_CHARACTERS = {*string.ascii_letters, *string.digits, *"._-"}
KEYS = st.one_of(st.text(), st.text(st.sampled_from(sorted(KEY_CHARACTERS)), max_size=130))
VALUES = st.one_of(
    st.none(), st.text(), st.text(st.characters(codec=None), max_size=9), st.text(min_size=200)
)


@given(KEYS, VALUES)
@example("k" * PROPERTY_KEY_LENGTH_MAX, "\u00e9" * (PROPERTY_VALUE_BYTES_MAX // 2))
@example("k" * (PROPERTY_KEY_LENGTH_MAX + 1), "")
@example("a", "\u00e9" * (PROPERTY_VALUE_BYTES_MAX // 2) + "x")
@example("a\n", "")
@example("a", "\ud800")
def test_a_property_is_a_short_key_and_a_text(key, value):
    is_key = 0 < len(key) <= PROPERTY_KEY_LENGTH_MAX and {*key} <= KEY_CHARACTERS
    data = (value or "").encode("utf-8", "surrogatepass")
    is_text = value is None or not any("\ud800" <= each <= "\udfff" for each in value)
    is_value = is_text and len(data) <= PROPERTY_VALUE_BYTES_MAX and b"\0" not in data
    if is_key and is_value:
        assert checked_properties([(key, value)]) == {key: value}
    else:
        with pytest.raises(InvalidRequestError):
            checked_properties([(key, value)])


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.none())), st.integers(0, 3))
def test_each_key_is_named_once_and_not_too_many(properties, count_max):
    keys = [key for key, _ in properties]
    if len({*keys}) == len(keys) <= count_max:
        assert checked_properties(properties, count_max) == dict(properties)
    else:
        with pytest.raises(InvalidRequestError):
            checked_properties(properties, count_max)


def test_a_change_replaces_all_properties_of_a_stream():
    full = [(str(each), "x" * PROPERTY_VALUE_BYTES_MAX) for each in range(2 * PROPERTIES_MAX)]
    assert checked_properties(full) == dict(full)
    with pytest.raises(InvalidRequestError, match="129 properties are more than 128"):
        checked_properties([*full, ("more", None)])
