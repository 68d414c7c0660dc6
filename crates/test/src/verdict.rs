//! What programs return, by name.

use serde_json::Value as Json;
use skep::chain::verdicts;
use skep::isa::ProgramType;

/// Values of tc programs (include/uapi/linux/pkt_cls.h).
const TC: [(&str, i32); 8] = [
    ("unspec", -1),
    ("ok", 0),
    ("reclassify", 1),
    ("shot", 2),
    ("pipe", 3),
    ("stolen", 4),
    ("redirect", 7),
    ("trap", 8),
];

/// Reads what a program should return: a number, or a name of its type: `pass` and `XDP_PASS` of XDP
/// programs, `shot` and `TC_ACT_SHOT` of tc programs.
///
/// # Errors
/// Says that there is no such value.
pub fn parse(wanted: &Json, kind: ProgramType) -> Result<u32, String> {
    let unknown = || format!("`retval`: {wanted} is no value that a program of this type returns");
    if let Some(n) = wanted.as_i64() {
        return u32::try_from(n).or(i32::try_from(n).map(|n| n as u32)).map_err(|_| unknown());
    }
    let text = wanted.as_str().ok_or_else(unknown)?.to_lowercase();
    match kind {
        ProgramType::Xdp => {
            let name = text.strip_prefix("xdp_").unwrap_or(&text);
            verdicts::parse(name).map_err(|_| unknown())
        }
        ProgramType::SchedCls | ProgramType::SchedAct => {
            let name = text.strip_prefix("tc_act_").unwrap_or(&text);
            let found = TC.iter().find(|(known, _)| *known == name);
            found.map(|(_, n)| *n as u32).ok_or_else(unknown)
        }
        _ => Err(unknown()),
    }
}

/// Shows what a program returned, with its name where it has one.
#[must_use]
pub fn show(retval: u32, kind: ProgramType) -> String {
    let tc = || TC.iter().find(|(_, n)| *n as u32 == retval);
    match kind {
        ProgramType::Xdp if retval <= verdicts::xdp::REDIRECT => {
            format!("{retval} ({})", verdicts::name(retval))
        }
        ProgramType::SchedCls | ProgramType::SchedAct => match tc() {
            Some((name, n)) => format!("{n} ({name})"),
            None => (retval as i32).to_string(),
        },
        _ => (retval as i32).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_those_of_the_type() {
        let xdp = |wanted| parse(&wanted, ProgramType::Xdp);
        assert_eq!((xdp(json!("XDP_DROP")), xdp(json!("pass"))), (Ok(1), Ok(2)));
        assert!(xdp(json!("shot")).is_err() && xdp(json!(null)).is_err());
        let tc = |wanted| parse(&wanted, ProgramType::SchedCls);
        assert_eq!((tc(json!("TC_ACT_UNSPEC")), tc(json!("shot"))), (Ok(u32::MAX), Ok(2)));
        assert_eq!(tc(json!(-1)), Ok(u32::MAX));
        assert_eq!(show(u32::MAX, ProgramType::SchedCls), "-1 (unspec)");
        assert_eq!(show(2, ProgramType::Xdp), "2 (pass)");
        assert_eq!(show(u32::MAX, ProgramType::Xdp), "-1");
        assert_eq!(show(5, ProgramType::Kprobe), "5");
        assert!(parse(&json!("pass"), ProgramType::Kprobe).is_err());
    }
}
