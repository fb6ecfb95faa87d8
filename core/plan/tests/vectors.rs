//! Worked instances: the algorithms build every tree and every time stated in them.

#![allow(clippy::unwrap_used)]

use plan::{Algorithm, Effort, Instance, Model, Ports};
use serde_json::Value;

const VECTORS: [&str; 2] = [include_str!("vectors/v00_hand4.json"), include_str!("vectors/v08_gw4_1048576.json")];

#[test]
fn every_tree_and_every_time_is_as_stated() {
    for text in VECTORS {
        let instance = Instance::from_json(text).unwrap();
        let stated: Value = serde_json::from_str(text).unwrap();
        let expected = stated["expected"].as_object().unwrap();
        assert_eq!(expected.len(), 23);
        for (name, each) in expected {
            let tree = Algorithm::by_name(name).unwrap().build(&instance);
            assert_eq!(serde_json::to_value(&tree).unwrap(), each["tree"], "{}: {name}", stated["name"]);
            for model in Model::ALL {
                let (time, wanted) =
                    (model.completion(&instance, &tree), each["completion"][model.name()].as_f64().unwrap());
                assert!((time - wanted).abs() <= 1e-9, "{}: {name}: {}: {time} {wanted}", stated["name"], model.name());
            }
        }
    }
}

fn is_near(found: f64, wanted: &Value) -> bool {
    let wanted = wanted.as_f64().unwrap();
    (found - wanted).abs() <= 1e-6 * wanted
}

#[test]
fn bounds_are_as_stated() {
    for text in VECTORS {
        let instance = Instance::from_json(text).unwrap();
        let stated: Value = serde_json::from_str(text).unwrap();
        for (key, ports) in [("lp_oneport", Ports::One), ("lp_multiport_UDpair", Ports::Many)] {
            let packing = plan::pack(&instance, ports, Effort::EXACT);
            assert!(is_near(packing.rate, &stated[key]["rate_Bps"]), "{}: {key}: {}", stated["name"], packing.rate);
            assert!(is_near(packing.upper_bound, &stated[key]["upper_bound_Bps"]));
        }
        for (name, wanted) in stated["lp_multiport_UDpair"]["tree_rate_Bps"].as_object().unwrap() {
            let tree = Algorithm::by_name(name).unwrap().build(&instance);
            assert!(is_near(plan::rate(&instance, &tree, Ports::Many), wanted), "{}: {name}", stated["name"]);
        }
        assert_eq!(serde_json::to_value(plan::bottlenecks(&instance)).unwrap(), stated["tps_bottleneck_set"]);
    }
}

#[test]
fn optima_are_as_stated() {
    let mut checked = 0;
    for text in VECTORS {
        let instance = Instance::from_json(text).unwrap();
        let stated: Value = serde_json::from_str(text).unwrap();
        for (key, model) in [("optimum_BHAT", Model::Bhat), ("optimum_LOGGP", Model::LogGp)] {
            if let Some(wanted) = stated.get(key) {
                let (tree, time) = plan::optimum(&instance, model).unwrap();
                assert!((time - wanted["completion"].as_f64().unwrap()).abs() <= 1e-9);
                assert_eq!(serde_json::to_value(tree.edges().collect::<Vec<_>>()).unwrap(), wanted["schedule"]);
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 2);
}
