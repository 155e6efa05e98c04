// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sizes of memory, as a person writes them.

/// Reads a number of bytes such as `256M`.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let shift = match text.chars().last() {
        Some('K' | 'k') => 10,
        Some('M' | 'm') => 20,
        Some('G' | 'g') => 30,
        _ => 0,
    };
    let digits = if shift == 0 {
        text
    } else {
        &text[..text.len() - 1]
    };
    parse_number(digits)
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or_else(|| format!("{text:?} is no size: a number, with K, M or G"))
}

/// Reads digits alone: `parse` takes a sign, too.
pub fn parse_number(text: &str) -> Option<u64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_unit_or_none_and_no_sign() {
        for (text, size) in [
            ("1G", 1 << 30),
            ("1g", 1 << 30),
            ("512m", 512 << 20),
            ("1024k", 1 << 20),
            ("1073741824", 1 << 30),
        ] {
            assert_eq!(parse_size(text), Ok(size), "{text}");
        }
        for text in [
            "",
            "M",
            "1T",
            "-1M",
            "+64M",
            "64 M",
            "1MM",
            "18014398509481985K",
            "64424509440G",
        ] {
            let said = parse_size(text).unwrap_err();
            assert!(said.contains("is no size"), "{text}: {said}");
        }
    }
}
