//! Owns text files of published measurements of attention: one line per measurement, in CSV without quotes.
//!
//! Columns: `source` (a publication, or repository@commit:path), `licence`, `software`, `device`, `operator`
//! (PyTorch's), `dtype`, `pass` (`forward` or `backward`), `causal` (0 or 1), `window` (keys that a query sees at most,
//! only with a causal mask; 0: all), `batch`, `heads`, `kv_heads`, `tokens` (queries, and keys, of a sequence),
//! `head_dim`, `tflops`, `us`. Either a rate or a time is given: the rate counts visible pairs, 4 operations per
//! element in a forward pass and 10 in a backward pass. Lines that begin with `#` are comments.

use super::operators::{Work, attention, dtype};
use super::{Gathered, ImportError, Measurement};
use crate::database::{Notice, Series};
use std::path::Path;
use uniference_sim::device::Pass;

const COLUMNS: &str = "source,licence,software,device,operator,dtype,pass,causal,window,batch,heads,kv_heads,tokens,\
                       head_dim,tflops,us";

pub(super) fn read(path: &Path, into: &mut Gathered) -> Result<(), ImportError> {
    let text = std::fs::read_to_string(path).map_err(|source| ImportError::File { path: path.to_owned(), source })?;
    let wrong = |problem: String| ImportError::Source { path: path.to_owned(), problem };
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with('#') && !line.is_empty());
    if lines.next().is_none_or(|(_, line)| line != COLUMNS) {
        return Err(wrong(format!("its first line is not `{COLUMNS}`")));
    }
    for (index, line) in lines {
        let (notice, measurement) =
            measurement(line).ok_or_else(|| wrong(format!("line {} is no measurement", index + 1)))?;
        into.add(|| notice, measurement);
    }
    Ok(())
}

fn measurement(line: &str) -> Option<(Notice, Measurement)> {
    let fields: Vec<&str> = line.split(',').collect();
    let [source, licence, software, device, operator, of_dtype, pass, causal, sizes @ .., tflops, us] = &fields[..]
    else {
        return None;
    };
    let sizes: Vec<u64> = sizes.iter().map(|size| size.parse().ok()).collect::<Option<_>>()?;
    let [window, batch, heads, key_heads, tokens, width] = sizes[..] else { return None };
    let (dtype, each) = dtype(of_dtype)?;
    let pass = match *pass {
        "forward" => Pass::Forward,
        "backward" => Pass::Backward,
        _ => return None,
    };
    let causal = match *causal {
        "0" => false,
        "1" => true,
        _ => return None,
    };
    let Work { family, mut flops, bytes, .. } =
        attention(pass, [batch, heads, key_heads, tokens, tokens, width], causal, each);
    if window > 0 {
        // The first queries see fewer keys. Without a causal mask, the columns do not tell the window's other side.
        if !causal {
            return None;
        }
        let window = window.min(tokens);
        let visible = window * tokens - window * (window - 1) / 2;
        flops = if pass == Pass::Forward { 4 } else { 10 } * batch * heads * visible * width;
    }
    let microseconds = match (*tflops, *us) {
        ("", microseconds) => microseconds.parse().ok()?,
        (tflops, "") => flops as f64 / tflops.parse::<f64>().ok()? / 1e6,
        _ => return None,
    };
    let [name, licence, device, software, variant] =
        [source, licence, device, software, operator].map(|text| (*text).to_owned());
    let series = Series {
        device,
        software,
        family: family.name().to_owned(),
        variant,
        dtype: dtype.to_owned(),
        source: name.clone(),
    };
    let notice = Notice { notice: name.clone(), name, licence };
    let dimensions = crate::database::dimensions(&family);
    Some((notice, Measurement { series, dimensions, flops, bytes, microseconds }))
}
