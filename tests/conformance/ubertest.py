"""fabtests' ubertest: the combinations of calls, completions and data types for a reliable datagram endpoint."""

import re

# For a thousand combinations; each one has to report sooner than this.
LIMIT_S = 1800.0
OUTCOMES = ("Success", "ENODATA", "ENOSYS", "EIO", "ERROR")


def _functions(*names):
    return [f"FT_FUNC_{name}" for name in names]


_MESSAGES = _functions("SEND", "SENDV", "SENDMSG", "SENDDATA", "INJECT", "INJECTDATA")
_RMA = _functions(
    "WRITE", "WRITEV", "WRITEMSG", "WRITEDATA", "INJECT_WRITE", "INJECT_WRITEDATA", "READ", "READV", "READMSG"
)
_TYPES = [
    "FI_INT8",
    "FI_UINT8",
    "FI_INT16",
    "FI_UINT16",
    "FI_INT32",
    "FI_UINT32",
    "FI_INT64",
    "FI_UINT64",
    "FI_FLOAT",
    "FI_DOUBLE",
    "FI_FLOAT_COMPLEX",
    "FI_DOUBLE_COMPLEX",
    "FI_LONG_DOUBLE",
    "FI_LONG_DOUBLE_COMPLEX",
]
_OPERATIONS = [
    "FI_MIN",
    "FI_MAX",
    "FI_SUM",
    "FI_PROD",
    "FI_LOR",
    "FI_LAND",
    "FI_BOR",
    "FI_BAND",
    "FI_LXOR",
    "FI_BXOR",
    "FI_ATOMIC_WRITE",
]
_COMPARES = ["FI_CSWAP", "FI_CSWAP_NE", "FI_CSWAP_LE", "FI_CSWAP_LT", "FI_CSWAP_GE", "FI_CSWAP_GT", "FI_MSWAP"]
_CHECKED = {"test_type": ["FT_TEST_UNIT"], "comp_type": ["FT_COMP_QUEUE"]}
_WAITS = ["FI_WAIT_NONE", "FI_WAIT_UNSPEC", "FI_WAIT_FD"]

# Each group is one run of ubertest. `FT_TEST_UNIT` compares the received data with the sent data.
GROUPS = {
    "messages": {
        **_CHECKED,
        "test_class": ["FT_CAP_MSG", "FT_CAP_TAGGED"],
        "class_function": _MESSAGES,
        "av_type": ["FI_AV_TABLE", "FI_AV_MAP"],
    },
    "messages-under-load": {
        "test_type": ["FT_TEST_LATENCY", "FT_TEST_BANDWIDTH"],
        "comp_type": ["FT_COMP_QUEUE", "FT_COMP_CNTR"],
        "test_class": ["FT_CAP_MSG", "FT_CAP_TAGGED"],
        "class_function": _MESSAGES,
    },
    "completion-data": {
        **_CHECKED,
        "test_class": ["FT_CAP_MSG", "FT_CAP_TAGGED"],
        "class_function": _functions("SENDMSG", "SENDDATA", "INJECTDATA"),
        "msg_flags": "FI_REMOTE_CQ_DATA",
    },
    "rma": {**_CHECKED, "test_class": ["FT_CAP_RMA"], "class_function": _RMA},
    "rma-under-load": {
        "test_type": ["FT_TEST_LATENCY", "FT_TEST_BANDWIDTH"],
        "comp_type": ["FT_COMP_QUEUE"],
        "test_class": ["FT_CAP_RMA"],
        "class_function": _RMA,
    },
    "rma-data": {
        **_CHECKED,
        "test_class": ["FT_CAP_RMA"],
        "class_function": _functions("WRITEMSG", "WRITEDATA", "INJECT_WRITEDATA"),
        "msg_flags": "FI_REMOTE_CQ_DATA",
    },
    "atomics": {
        **_CHECKED,
        "test_class": ["FT_CAP_ATOMIC"],
        "class_function": _functions(
            "ATOMIC", "ATOMICV", "ATOMICMSG", "FETCH_ATOMIC", "FETCH_ATOMICV", "FETCH_ATOMICMSG", "INJECT_ATOMIC"
        ),
        "op": _OPERATIONS,
        "datatype": _TYPES,
    },
    "atomic-reads": {
        **_CHECKED,
        "test_class": ["FT_CAP_ATOMIC"],
        "class_function": _functions("FETCH_ATOMIC", "FETCH_ATOMICV", "FETCH_ATOMICMSG"),
        "op": ["FI_ATOMIC_READ"],
        "datatype": _TYPES,
    },
    "atomic-compares": {
        **_CHECKED,
        "test_class": ["FT_CAP_ATOMIC"],
        "class_function": _functions("COMPARE_ATOMIC", "COMPARE_ATOMICV", "COMPARE_ATOMICMSG"),
        "op": _COMPARES,
        "datatype": _TYPES,
    },
    "queue-waits": {
        "test_type": ["FT_TEST_LATENCY"],
        "comp_type": ["FT_COMP_QUEUE"],
        "test_class": ["FT_CAP_TAGGED"],
        "cq_wait_obj": _WAITS,
    },
    "counter-waits": {
        "test_type": ["FT_TEST_LATENCY"],
        "comp_type": ["FT_COMP_CNTR"],
        "test_class": ["FT_CAP_TAGGED"],
        "cntr_wait_obj": _WAITS,
    },
    "selective-completion": {
        "test_type": ["FT_TEST_LATENCY", "FT_TEST_BANDWIDTH"],
        "comp_type": ["FT_COMP_QUEUE", "FT_COMP_CNTR"],
        "test_class": ["FT_CAP_MSG", "FT_CAP_TAGGED"],
        "class_function": _functions("SENDMSG"),
        "tx_cq_bind_flags": ["FI_SELECTIVE_COMPLETION"],
        "msg_flags": ["FI_COMPLETION"],
    },
}


def configuration(group, provider):
    """The text of ubertest's configuration file for one group."""
    fields = {
        "prov_name": provider,
        **GROUPS[group],
        "ep_type": ["FI_EP_RDM"],
        "mr_mode": [],
        "progress": ["FI_PROGRESS_MANUAL"],
    }
    fields["test_flags"] = ["FT_FLAG_QUICKTEST"]
    lines = [f"\t{name}: {_value(value)}," for name, value in fields.items()]
    return "{\n" + "\n".join(lines) + "\n},\n"


def _value(value):
    return value if isinstance(value, str) else "[" + "".join(f"\n\t\t{word}," for word in value) + "\n\t]"


def counts(out):
    """Number of combinations per outcome, from a client's output."""
    found = dict.fromkeys(OUTCOMES, 0)
    for name, count in re.findall(r"^(\w+) *: (\d+)$", out, re.MULTILINE):
        if name in found:
            found[name] += int(count)
    return found


def describe(counts):
    names = {
        "Success": "passed",
        "ENODATA": "not offered",
        "ENOSYS": "not implemented",
        "EIO": "with wrong data",
        "ERROR": "failed",
    }
    return "combinations: " + ", ".join(f"{counts[name]} {word}" for name, word in names.items() if counts[name])
