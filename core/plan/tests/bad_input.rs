//! Errors in an instance name the place and the value.

#![allow(clippy::unwrap_used)]

mod seeds;

use plan::{Instance, Tree};
use proptest::prelude::*;
use serde_json::{Value, json};

use seeds::cases;

fn good() -> Value {
    json!({
        "N": 3, "root": 0, "message_bytes": 1000, "packet_bytes": 100, "os": 0, "or_": 0,
        "latency_s": [[0, 1, 2], [1, 0, 3], [2, 3, 0]],
        "bandwidth_Bps": [[null, 10, 20], [10, null, 30], [20, 30, null]],
        "uplink_Bps": [20, 30, 30], "downlink_Bps": [20, 30, 30],
    })
}

/// The error message for a valid instance with the value at a JSON pointer replaced.
fn with(pointer: &str, value: Value) -> String {
    let mut instance = good();
    *instance.pointer_mut(pointer).unwrap() = value;
    Instance::from_json(&instance.to_string()).unwrap_err().to_string()
}

#[test]
fn a_good_instance_is_read() {
    let instance = Instance::from_json(&good().to_string()).unwrap();
    assert_eq!((instance.nodes(), instance.packets(), instance.bandwidth(1, 2)), (3, 10, 30.0));
}

#[test]
fn errors_name_the_place_and_the_value() {
    let cases = [
        (with("/latency_s/1/2", json!(-0.5)), "latency_s[1][2]: -0.5 is not a number of seconds from 0 to 1e9"),
        (with("/latency_s/1/2", json!(1e308)), "latency_s[1][2]: 1e308 is not a number of seconds from 0 to 1e9"),
        (with("/bandwidth_Bps/2/1", json!(-7)), "bandwidth_Bps[2][1]: -7 is not a rate in bytes/s from 0.001 to 1e18"),
        (
            with("/bandwidth_Bps/2/1", json!("fast")),
            "bandwidth_Bps[2][1]: fast is not a rate in bytes/s from 0.001 to 1e18",
        ),
        (with("/uplink_Bps/1", json!(0)), "uplink_Bps[1]: 0 is not a rate in bytes/s from 0.001 to 1e18"),
        (with("/downlink_Bps/2", json!(null)), "downlink_Bps[2]: null is not a rate in bytes/s from 0.001 to 1e18"),
        (with("/latency_s/1", json!([1, 2])), "latency_s[1]: 2 entries, but N is 3"),
        (with("/bandwidth_Bps", json!([[null, 1, 1]])), "bandwidth_Bps: 1 entries, but N is 3"),
        (with("/root", json!([0, 2])), "root: two roots, [0,2]; a broadcast has one"),
        (with("/root", json!(3)), "root: 3 is not the number of a node: they begin with 0"),
        (with("/root", json!(-1)), "root: -1 is not the number of a node: they begin with 0"),
        (with("/N", json!(1)), "N: 1 is not a number of nodes from 2 to 4096"),
        (with("/N", json!(1e15)), "N: 1000000000000000 is not a number of nodes from 2 to 4096"),
        (with("/message_bytes", json!(0)), "message_bytes: 0 is not a whole number of bytes from 1 to 2^53"),
        (with("/packet_bytes", json!(1.5)), "packet_bytes: 1.5 is not a whole number of bytes from 1 to 2^53"),
        (with("/os", json!(-1)), "os: -1 is not a number of seconds from 0 to 1e9"),
        (
            with("/bandwidth_Bps/1/2", json!(null)),
            "bandwidth_Bps[1][2]: null; only the diagonal has no rate, so give the rate in bytes/s",
        ),
        (
            with("/bandwidth_Bps", json!([[null, 10, null], [10, null, null], [20, 30, null]])),
            "bandwidth_Bps: node 2 is unreachable from root 0: no node reached has a positive rate to it",
        ),
        (
            with("/bandwidth_Bps", json!([[null, 10, 0], [10, null, 0], [20, 30, null]])),
            "bandwidth_Bps: node 2 is unreachable from root 0: no node reached has a positive rate to it",
        ),
        (
            with("/message_bytes", json!(1u64 << 40)),
            "packet_bytes: 100 bytes make 10995116278 packets of a message of 1099511627776 bytes, at most 4194304; \
             choose larger packets",
        ),
    ];
    for (found, wanted) in cases {
        assert_eq!(found, wanted);
    }
}

#[test]
fn numbers_that_json_does_not_have_are_named_too() {
    for word in ["NaN", "Infinity", "-Infinity"] {
        let text = good().to_string().replace("[20,30,null]", &format!("[20,{word},null]"));
        let found = Instance::from_json(&text).unwrap_err().to_string();
        assert_eq!(found, format!("bandwidth_Bps[2][1]: {word} is not a rate in bytes/s from 0.001 to 1e18"));
    }
    let in_a_name = good().to_string().replacen('{', r#"{"a \"NaN\\":"NaN","#, 1);
    assert!(Instance::from_json(&in_a_name).is_ok());
}

#[test]
fn a_field_that_is_missing_or_twice_is_named() {
    let text = good().to_string();
    let twice = text.replacen('{', r#"{"root":1,"#, 1);
    let found = Instance::from_json(&twice).unwrap_err().to_string();
    assert_eq!(found, "root: given twice; which one counts is unclear, so remove one");
    let mut without = good();
    without.as_object_mut().unwrap().remove("uplink_Bps");
    let found = Instance::from_json(&without.to_string()).unwrap_err().to_string();
    assert_eq!(found, "uplink_Bps: missing; an instance needs it");
    assert!(Instance::from_json("{\n\"N\": 3,,").unwrap_err().to_string().starts_with("line 2, column 8: "));
}

#[test]
fn parents_that_are_no_tree_are_refused() {
    let tree = |parent: &[Option<usize>], order: &[usize]| Tree::new(parent.to_vec(), order.to_vec());
    assert!(tree(&[None, Some(0), Some(1)], &[0, 1, 2]).is_ok());
    let cases = [
        (tree(&[None, None, Some(1)], &[0, 1, 2]), "parent: two roots, nodes 0 and 1; a tree has one"),
        (tree(&[Some(2), Some(0), Some(1)], &[0, 1, 2]), "parent: no node has none; a tree has one root"),
        (tree(&[None, Some(2), Some(1)], &[0, 1, 2]), "parent[1]: 2 stands after node 1 in the order, or is no node"),
        (tree(&[None, Some(0)], &[0, 0]), "order[1]: node 0 is none of the 2 nodes, or stands there twice"),
        (tree(&[None, Some(0)], &[0]), "order: 1 entries for 2 nodes"),
    ];
    for (found, wanted) in cases {
        assert_eq!(found.unwrap_err().to_string(), wanted);
    }
}

proptest! {
    #![proptest_config(cases(256))]

    /// Reading any text ends with an instance or an error.
    #[test]
    fn no_text_panics(place in 0usize..200, junk in ".{0,6}") {
        let text = good().to_string();
        let cut = text.char_indices().map(|(at, _)| at).nth(place % text.len()).unwrap();
        let _ = Instance::from_json(&format!("{}{junk}{}", &text[..cut], &text[cut..]));
        let _ = Instance::from_json(&junk);
    }
}
