//! Shapes: of clients, as the config's `dims` have them, and of backends, as `reshape` has them.

/// Whether dimensions are those that were declared; -1 stands for any extent.
pub(crate) fn fits(shape: &[i64], declared: &[i64]) -> bool {
    shape.len() == declared.len()
        && shape.iter().zip(declared).all(|(&got, &want)| got >= 0 && (want < 0 || want == got))
}

/// A shape that fits `from` as `to` has it: its n-th free dimension is the n-th free one of `from`.
pub(crate) fn reshaped(shape: &[i64], from: &[i64], to: &[i64]) -> Vec<i64> {
    let mut free = shape.iter().zip(from).filter(|(_, want)| **want < 0).map(|(&got, _)| got);
    to.iter().map(|&dim| if dim < 0 { free.next().unwrap_or(dim) } else { dim }).collect()
}

/// Elements of a shape; `None` where a dimension is negative or the product leaves 63 bits.
pub(crate) fn elements(shape: &[i64]) -> Option<usize> {
    let product = |product: i64, &dim: &i64| if dim < 0 { None } else { product.checked_mul(dim) };
    usize::try_from(shape.iter().try_fold(1, product)?).ok()
}

/// `[-1,3,8]`, as Triton prints shapes.
pub(crate) fn compact(shape: &[i64]) -> String {
    let dims: Vec<_> = shape.iter().map(ToString::to_string).collect();
    format!("[{}]", dims.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_dimensions_keep_their_order() {
        assert_eq!(reshaped(&[2, 3, 7], &[2, 3, -1], &[6, -1]), [6, 7]);
        assert_eq!(reshaped(&[6, 7], &[6, -1], &[2, 3, -1]), [2, 3, 7]);
        assert_eq!(reshaped(&[5, 9], &[-1, -1], &[-1, 1, -1]), [5, 1, 9]);
        assert_eq!(reshaped(&[1], &[1], &[]), [0_i64; 0]);
    }

    #[test]
    fn shapes_fit_what_was_declared() {
        assert!(fits(&[2, 0], &[2, -1]) && fits(&[], &[]));
        assert!(!fits(&[2, -1], &[2, -1]) && !fits(&[2], &[2, -1]) && !fits(&[3], &[2]));
    }

    #[test]
    fn elements_do_not_overflow() {
        assert_eq!(elements(&[2, 3, 0]), Some(0));
        assert_eq!(elements(&[]), Some(1));
        assert_eq!(elements(&[1 << 32, 1 << 32]), None);
        assert_eq!(elements(&[-1]), None);
    }
}
