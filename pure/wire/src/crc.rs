//! The arithmetic of CRC-32: what one byte contributes to a sum, and how to take bytes back.
//!
//! A CRC is the remainder of the message, read as a polynomial over two elements, by a polynomial
//! of degree 32. So it is linear: changing a field changes the sum by a value that depends on the
//! change and on how many bytes follow, and on nothing else. `icrc.rs` uses that to set lengths
//! and identifications in a finished sum, and to find one that it was not told.
//!
//! A remainder is kept the way the sum's register is, reflected: bit 31 is the coefficient of x⁰,
//! bit 0 that of x³¹. Adding is XOR. The bulk of a message goes through `crc32fast`, not through
//! here.

/// A value for every byte.
#[derive(Debug)]
pub(crate) struct Table([u32; 256]);

impl Table {
    /// What each byte contributes to the sum when `after` bytes follow it.
    pub(crate) const fn contributions(after: u32) -> Self {
        let mut table = [0; 256];
        let mut rest = table.as_mut_slice();
        let mut byte: u32 = 0;
        while let Some((slot, tail)) = rest.split_first_mut() {
            *slot = forward(byte, 8 * (after + 1));
            rest = tail;
            byte += 1;
        }
        Self(table)
    }

    /// What to add to the sum so that the byte after the next `before` ones counts as if it had
    /// been changed by XOR with the table's argument.
    pub(crate) const fn corrections(before: u32) -> Self {
        let mut table = [0; 256];
        let mut rest = table.as_mut_slice();
        let mut byte: u32 = 0;
        while let Some((slot, tail)) = rest.split_first_mut() {
            *slot = backward(byte, 8 * before);
            rest = tail;
            byte += 1;
        }
        Self(table)
    }

    /// x to the power of −8 × (`stride` × argument + `offset`): takes that many bytes back.
    pub(crate) const fn undoing(stride: u32, offset: u32) -> Self {
        let step = backward(ONE, 8 * stride);
        let mut power = backward(ONE, 8 * offset);
        let mut table = [0; 256];
        let mut rest = table.as_mut_slice();
        while let Some((slot, tail)) = rest.split_first_mut() {
            *slot = power;
            rest = tail;
            power = multiply_slowly(power, step);
        }
        Self(table)
    }

    /// The sum of two tables, for two fields that always have the same value.
    pub(crate) const fn plus(mut self, other: &Self) -> Self {
        let mut rest = self.0.as_mut_slice();
        let mut others = other.0.as_slice();
        while let (Some((slot, tail)), Some((value, values))) =
            (rest.split_first_mut(), others.split_first())
        {
            *slot ^= *value;
            rest = tail;
            others = values;
        }
        self
    }

    /// The value for `byte`.
    #[inline]
    pub(crate) fn at(&self, byte: u8) -> u32 {
        self.0.get(usize::from(byte)).copied().unwrap_or_default()
    }
}

/// The product of two remainders, in constant time.
#[inline]
pub(crate) fn multiply(a: u32, b: u32) -> u32 {
    // Reflected factors give a reflected product one bit too low.
    let product = carryless(u64::from(a), u64::from(b)) << 1;
    let [a0, a1, a2, a3, r0, r1, r2, r3] = product.to_le_bytes();
    // The low half stands for x³² and above: what four bytes contribute as message.
    let overflow = AFTER_3.at(a0) ^ AFTER_2.at(a1) ^ AFTER_1.at(a2) ^ AFTER_0.at(a3);
    u32::from_le_bytes([r0, r1, r2, r3]) ^ overflow
}

/// The carry-less product of two numbers below 2³².
///
/// Ordinary multiplication with three empty bits between any two bits of a factor: at most eight
/// partial products meet in one place, and their carries die in the gaps.
#[inline]
const fn carryless(a: u64, b: u64) -> u64 {
    const HOLES: u64 = 0x1111_1111_1111_1111;
    let (a0, a1, a2, a3) = (a & HOLES, a & (HOLES << 1), a & (HOLES << 2), a & (HOLES << 3));
    let (b0, b1, b2, b3) = (b & HOLES, b & (HOLES << 1), b & (HOLES << 2), b & (HOLES << 3));
    let p0 = times(a0, b0) ^ times(a1, b3) ^ times(a2, b2) ^ times(a3, b1);
    let p1 = times(a0, b1) ^ times(a1, b0) ^ times(a2, b3) ^ times(a3, b2);
    let p2 = times(a0, b2) ^ times(a1, b1) ^ times(a2, b0) ^ times(a3, b3);
    let p3 = times(a0, b3) ^ times(a1, b2) ^ times(a2, b1) ^ times(a3, b0);
    (p0 & HOLES) | (p1 & (HOLES << 1)) | (p2 & (HOLES << 2)) | (p3 & (HOLES << 3))
}

#[inline]
const fn times(a: u64, b: u64) -> u64 {
    a.wrapping_mul(b)
}

/// The product of two remainders, a bit at a time: for making tables.
const fn multiply_slowly(a: u32, b: u32) -> u32 {
    let mut product = 0;
    let mut power = a; // a × xⁿ
    let mut bits = b;
    while bits != 0 {
        if bits & ONE != 0 {
            product ^= power;
        }
        bits <<= 1;
        power = forward(power, 1);
    }
    product
}

/// Multiplies by x, `times` times.
const fn forward(mut remainder: u32, times: u32) -> u32 {
    let mut left = times;
    while left > 0 {
        let overflow = remainder & 1 != 0;
        remainder >>= 1;
        if overflow {
            remainder ^= POLYNOMIAL;
        }
        left -= 1;
    }
    remainder
}

/// Divides by x, `times` times.
const fn backward(mut remainder: u32, times: u32) -> u32 {
    let mut left = times;
    while left > 0 {
        remainder =
            if remainder & ONE != 0 { ((remainder ^ POLYNOMIAL) << 1) | 1 } else { remainder << 1 };
        left -= 1;
    }
    remainder
}

/// The polynomial of Ethernet, without x³², reflected.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// x⁰.
const ONE: u32 = 0x8000_0000;

static AFTER_0: Table = Table::contributions(0);
static AFTER_1: Table = Table::contributions(1);
static AFTER_2: Table = Table::contributions(2);
static AFTER_3: Table = Table::contributions(3);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_is_neutral_and_x_shifts() {
        assert_eq!(multiply(ONE, 0x1234_5678), 0x1234_5678);
        assert_eq!(multiply(ONE >> 1, 1), POLYNOMIAL); // x × x³¹ = x³², reduced.
        assert_eq!(backward(POLYNOMIAL, 1), 1);
    }

    #[test]
    fn contributions_are_those_of_the_library() {
        // XOR with the sum of zeros takes away what the initial and final inversions add.
        let table = Table::contributions(3);
        for byte in 0..=u8::MAX {
            let expected = crc32fast::hash(&[byte, 0, 0, 0]) ^ crc32fast::hash(&[0; 4]);
            assert_eq!(table.at(byte), expected, "byte {byte:#x}");
        }
    }

    proptest! {
        #[test]
        fn both_products_agree(a: u32, b: u32) {
            prop_assert_eq!(multiply(a, b), multiply_slowly(a, b));
            prop_assert_eq!(multiply(a, b), multiply(b, a));
        }

        #[test]
        fn division_undoes_multiplication(a: u32, times in 0..5000_u32) {
            prop_assert_eq!(backward(forward(a, times), times), a);
        }

        #[test]
        fn undoing_takes_bytes_back(a: u32, high: u8, low: u8) {
            let bytes = 256 * u32::from(high) + u32::from(low);
            let undo = multiply(
                Table::undoing(256, 5).at(high),
                Table::undoing(1, 0).at(low),
            );
            prop_assert_eq!(multiply(forward(a, 8 * (bytes + 5)), undo), a);
        }
    }
}
