//! Classification: an output as the indices of its largest values, `value:index` or `value:index:label`.
use std::cmp::Ordering;

use bytes::Bytes;

use crate::{dtype::Dtype, pending::OutputReply, pending::TensorSpec, strings};

/// Whether values of this type have an order that the protocol prints.
pub(crate) fn is_served(dtype: Dtype) -> bool {
    !matches!(dtype, Dtype::Bool | Dtype::Fp16 | Dtype::Bf16 | Dtype::Bytes)
}

/// The `count` largest values of each row, largest first; equal ones in the order of their indices, NaNs last.
///
/// `rows` is the batch size, or `None` where the whole tensor is one row. The type is one that `is_served`.
pub(crate) fn classify(
    output: OutputReply,
    tensor: &TensorSpec,
    rows: Option<i64>,
    count: usize,
) -> OutputReply {
    let OutputReply { index, dtype, bytes, .. } = output;
    let bytes = bytes.unwrap_or_default();
    let height = usize::try_from(rows.unwrap_or(1)).unwrap_or(1);
    let width = (bytes.len() / dtype.size()).checked_div(height).unwrap_or(0);
    let count = count.min(width);
    let mut classes = Vec::new();
    for row in bytes.chunks_exact((width * dtype.size()).max(1)).take(height) {
        top(row, dtype, count, |value, at| {
            let label = tensor.labels.get(at).filter(|label| !label.is_empty());
            let class =
                label.map_or_else(|| format!("{value}:{at}"), |label| format!("{value}:{at}:{label}"));
            let _ = strings::push(&mut classes, class.as_bytes()); // a label is never over 4 GiB
        });
    }
    let shape = rows.into_iter().chain([i64::try_from(count).unwrap_or(i64::MAX)]).collect();
    OutputReply { index, dtype: Dtype::Bytes, shape, bytes: Some(Bytes::from(classes)) }
}

/// Hands the `count` largest values of a row out as they are printed, with their indices.
fn top(row: &[u8], dtype: Dtype, count: usize, mut hand_out: impl FnMut(String, usize)) {
    macro_rules! of {
        ($type:ty, $print:expr) => {{
            let read = |chunk: &[u8]| <$type>::from_le_bytes(chunk.try_into().unwrap_or_default());
            let values: Vec<$type> = row.chunks_exact(size_of::<$type>()).map(read).collect();
            for at in largest(&values, count) {
                hand_out($print(values[at]), at);
            }
        }};
    }
    match dtype {
        Dtype::Uint8 => of!(u8, |value: u8| value.to_string()),
        Dtype::Uint16 => of!(u16, |value: u16| value.to_string()),
        Dtype::Uint32 => of!(u32, |value: u32| value.to_string()),
        Dtype::Uint64 => of!(u64, |value: u64| value.to_string()),
        Dtype::Int8 => of!(i8, |value: i8| value.to_string()),
        Dtype::Int16 => of!(i16, |value: i16| value.to_string()),
        Dtype::Int32 => of!(i32, |value: i32| value.to_string()),
        Dtype::Int64 => of!(i64, |value: i64| value.to_string()),
        Dtype::Fp32 => of!(f32, |value: f32| decimal(f64::from(value))),
        Dtype::Fp64 => of!(f64, decimal),
        Dtype::Bool | Dtype::Fp16 | Dtype::Bf16 | Dtype::Bytes => {}
    }
}

/// As C prints `%f`.
fn decimal(value: f64) -> String {
    if value.is_nan() { "nan".into() } else { format!("{value:.6}") }
}

fn largest<T: PartialOrd>(values: &[T], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    let descending = |&a: &usize, &b: &usize| by_value(&values[b], &values[a]).then(a.cmp(&b));
    if count < order.len() {
        order.select_nth_unstable_by(count, descending);
        order.truncate(count);
    }
    order.sort_unstable_by(descending);
    order
}

/// NaN is less than every number.
fn by_value<T: PartialOrd>(a: &T, b: &T) -> Ordering {
    a.partial_cmp(b).unwrap_or_else(|| (a.partial_cmp(a).is_some()).cmp(&b.partial_cmp(b).is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_come_first_and_nan_last() {
        assert_eq!(largest(&[0.5, 3.0, f64::NAN, 3.0, f64::INFINITY, -1.0], 9), [4, 1, 3, 0, 5, 2]);
        assert_eq!(largest(&[1, 7, 7, 100], 2), [3, 1]);
        assert_eq!(largest::<u8>(&[], 3), [0_usize; 0]);
    }

    #[test]
    fn every_row_has_its_classes() {
        let labels = vec!["cat".into(), String::new(), "dog".into()];
        let tensor = TensorSpec { labels, ..TensorSpec::new("OUT".into(), Dtype::Int16, vec![-1]) };
        let bytes: Vec<u8> = [1_i16, -2, 30, 4, 5, 6].iter().flat_map(|value| value.to_le_bytes()).collect();
        let output =
            OutputReply { index: 0, dtype: Dtype::Int16, shape: vec![2, 3], bytes: Some(bytes.into()) };
        let classes = classify(output, &tensor, Some(2), 2);
        assert_eq!((classes.dtype, classes.shape), (Dtype::Bytes, vec![2, 2]));
        let bytes = classes.bytes.unwrap();
        let elements: Vec<_> =
            strings::Elements::new(&bytes).map(|element| str::from_utf8(element).unwrap()).collect();
        assert_eq!(elements, ["30:2:dog", "1:0:cat", "6:2:dog", "5:1"]);
    }

    #[test]
    fn rows_without_elements_have_no_classes() {
        let tensor = TensorSpec::new("OUT".into(), Dtype::Fp32, vec![-1]);
        let output =
            OutputReply { index: 0, dtype: Dtype::Fp32, shape: vec![2, 0], bytes: Some(Bytes::new()) };
        let classes = classify(output, &tensor, Some(2), 3);
        assert_eq!((classes.shape, classes.bytes), (vec![2, 0], Some(Bytes::new())));
    }
}
