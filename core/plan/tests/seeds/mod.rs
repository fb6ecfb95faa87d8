//! Configuration of property tests that use the same instances in every run, so a new failure comes from a code change.

use proptest::prelude::ProptestConfig;
use proptest::test_runner::RngSeed;

/// This many instances from a fixed seed; `PROPTEST_RNG_SEED` sets another seed.
pub(crate) fn cases(cases: u32) -> ProptestConfig {
    let mut config = ProptestConfig::with_cases(cases);
    if matches!(config.rng_seed, RngSeed::Random) {
        config.rng_seed = RngSeed::Fixed(18);
    }
    config
}
