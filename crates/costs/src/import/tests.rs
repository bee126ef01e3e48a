use super::*;
use ::parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::parser::parse_message_type;
use std::fs::File;
use std::sync::Arc;

/// A column and its values.
enum Column<'a> {
    Texts(&'a str, &'a [&'a str]),
    Sizes(&'a str, &'a [i64]),
    Numbers(&'a str, &'a [f64]),
}

fn write(path: &Path, columns: &[Column<'_>]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let field = |column: &Column<'_>| match column {
        Column::Texts(name, _) => format!("required binary {name} (UTF8);"),
        Column::Sizes(name, _) => format!("required int64 {name};"),
        Column::Numbers(name, _) => format!("required double {name};"),
    };
    let schema = format!("message schema {{ {} }}", columns.iter().map(field).collect::<String>());
    let schema = Arc::new(parse_message_type(&schema).unwrap());
    let mut file = SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::default()).unwrap();
    let mut group = file.next_row_group().unwrap();
    for column in columns {
        let mut writer = group.next_column().unwrap().unwrap();
        match column {
            Column::Texts(_, values) => {
                let values: Vec<ByteArray> = values.iter().map(|value| ByteArray::from(*value)).collect();
                writer.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
            }
            Column::Sizes(_, values) => {
                writer.typed::<Int64Type>().write_batch(values, None, None).unwrap();
            }
            Column::Numbers(_, values) => {
                writer.typed::<DoubleType>().write_batch(values, None, None).unwrap();
            }
        }
        writer.close().unwrap();
    }
    group.close().unwrap();
    file.close().unwrap();
}

fn rows(database: &Database, family: &str) -> Vec<(Series, Vec<Row>)> {
    let series = database.series().unwrap().into_iter().filter(|series| series.family == family);
    series.map(|series| (series.clone(), database.rows(&series).unwrap())).collect()
}

/// Three rows of the same GEMM, one layer of several kernels, and causal attention of a chunk of 4 on 10 keys with a
/// third of the heads for keys.
#[test]
fn a_file_of_operators_becomes_rows() {
    let folder = tempfile::tempdir().unwrap();
    let (path, target) = (folder.path().join("operators.parquet"), folder.path().join("own.sqlite"));
    let linear = r#"{"m":8,"n":16,"k":32,"bias":1}"#;
    let attention = r#"{"batch":2,"heads":6,"kv_heads":2,"head_dim":64,"seq_q":4,"seq_kv":10,"causal":1}"#;
    let vidur = "microsoft/vidur@7d:data/mlp.csv";
    let layers = "casys-kaist/LLMServingSim@5d:profiler/v0/x";
    write(
        &path,
        &[
            Column::Texts("source", &[vidur, vidur, vidur, layers, layers]),
            Column::Texts("device", &["h100-80gb"; 5]),
            Column::Texts("framework", &["torch"; 5]),
            Column::Texts("operator", &["linear", "linear", "linear", "rms_norm", "attention_prefill"]),
            Column::Texts("dtype", &["fp16"; 5]),
            Column::Texts("shape", &[linear, linear, linear, r#"{"rows":8,"cols":64}"#, attention]),
            Column::Numbers("forward_us", &[5.0, 7.0, 6.0, 17.0, 9.0]),
        ],
    );
    let mut database = Database::create(&target).unwrap();
    let imported = import(&path, &mut database).unwrap();
    assert_eq!((imported.rows, imported.skipped), (2, BTreeMap::from([("rms_norm".to_owned(), 1)])));
    assert!(imported.notices.iter().all(|notice| notice.licence == "MIT"));

    let gemm = rows(&database, "gemm");
    let (series, row) = (&gemm[0].0, &gemm[0].1[0]);
    assert_eq!(
        (series.device.as_str(), series.variant.as_str(), series.dtype.as_str()),
        ("h100-sxm-80gb", "nt", "float16")
    );
    assert_eq!(
        (row.dimensions, row.flops, row.bytes),
        ([1, 8, 16, 32], 2 * 8 * 16 * 32, 2 * (8 * 32 + 16 * 32 + 8 * 16 + 16))
    );
    assert_eq!((row.microseconds, row.repetitions), (6.0, 3));
    assert!((row.spread.unwrap() - 0.17).abs() < 0.02, "{row:?}");

    let row = &rows(&database, "attention")[0].1[0];
    // Half of the last square of 16 pairs is hidden, of 40 in all.
    assert_eq!((row.dimensions, row.flops), ([12, 4, 10, 64], 4 * 12 * 32 * 64));
    assert_eq!(row.bytes, 2 * 2 * 2 * 64 * (6 * 4 + 2 * 10));
}

/// The package's layout, including its sample of end-to-end results, which is no Parquet file.
#[test]
fn an_installed_package_becomes_rows() {
    let folder = tempfile::tempdir().unwrap();
    let systems = folder.path().join("aiconfigurator_core/systems");
    let names = [Column::Texts("framework", &["VLLM"; 4]), Column::Texts("version", &["0.24.0"; 4])];
    let [framework, version] = names;
    let table = |path: &str, columns: &[Column<'_>]| write(&systems.join("data").join(path), columns);
    table(
        "h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet",
        &[
            framework,
            version,
            Column::Texts("gemm_dtype", &["bfloat16", "fp8", "nvfp4", "fp8_block"]),
            Column::Texts("kernel_source", &["", "CutlassFP8ScaledMMLinearKernel", "", ""]),
            Column::Sizes("m", &[1, 2, 3, 5]),
            Column::Sizes("n", &[64, 64, 64, 192]),
            Column::Sizes("k", &[128, 128, 128, 320]),
            Column::Numbers("latency", &[0.003, 0.002, 0.001, 0.004]),
        ],
    );
    // The last row is complete; each other row has a feature that is not imported.
    table(
        "h100_sxm/moe/vllm/0.24.0/moe_perf.parquet",
        &[
            Column::Texts("framework", &["VLLM"; 5]),
            Column::Texts("version", &["0.24.0"; 5]),
            Column::Texts("moe_dtype", &["bfloat16"; 5]),
            Column::Texts("kernel_source", &["triton", "triton", "nongated_cutlass", "triton", "triton"]),
            Column::Texts("distribution", &["power_law_1.2", "balanced", "balanced", "balanced", "balanced"]),
            Column::Sizes("num_tokens", &[64, 64, 64, 3, 66]),
            Column::Sizes("hidden_size", &[256; 5]),
            Column::Sizes("inter_size", &[128; 5]),
            Column::Sizes("topk", &[2; 5]),
            Column::Sizes("num_experts", &[8; 5]),
            Column::Sizes("moe_tp_size", &[2; 5]),
            Column::Sizes("moe_ep_size", &[1, 4, 1, 1, 1]),
            Column::Numbers("latency", &[0.09; 5]),
        ],
    );
    table("h100_sxm/mla_bmm/vllm/0.24.0/mla_bmm_perf.parquet", &[Column::Numbers("latency", &[0.01; 7])]);
    let generation = |kv: &[&str]| {
        table(
            "l40s/attention/vllm/0.24.0/generation_attention_perf.parquet",
            &[
                Column::Texts("framework", &["VLLM"; 2]),
                Column::Texts("version", &["0.24.0"; 2]),
                Column::Texts("kernel_source", &["vllm_flash_attn_fa2"; 2]),
                Column::Texts("attn_dtype", &["bfloat16"; 2]),
                Column::Texts("kv_cache_dtype", kv),
                Column::Sizes("batch_size", &[4; 2]),
                Column::Sizes("isl", &[1; 2]),
                Column::Sizes("num_heads", &[8; 2]),
                Column::Sizes("num_key_value_heads", &[2; 2]),
                Column::Sizes("head_dim", &[128; 2]),
                Column::Sizes("step", &[99; 2]),
                Column::Numbers("latency", &[0.01; 2]),
            ],
        );
    };
    generation(&["bfloat16", "fp8"]);
    std::fs::write(systems.join("silicon_sample.csv"), "never read").unwrap();
    let mut database = Database::create(&folder.path().join("own.sqlite")).unwrap();
    let imported = import(folder.path(), &mut database).unwrap();
    assert_eq!(imported.rows, 6);
    let skipped = [
        ("generation_attention", 1),
        ("of experts of which some have no token", 1),
        ("of experts on several devices", 1),
        ("of experts with unequal work", 1),
        ("of experts without a gate", 1),
        ("of the table mla_bmm", 7),
        ("of type nvfp4", 1),
    ];
    assert_eq!(imported.skipped, BTreeMap::from(skipped.map(|(what, rows)| (what.to_owned(), rows))));
    assert_eq!(imported.notices[0].licence, "Apache-2.0");
    let gemm = rows(&database, "gemm");
    let series: Vec<_> = gemm.iter().map(|(series, _)| (series.variant.as_str(), series.dtype.as_str())).collect();
    let half = ["nt", "nt_experts"].map(|variant| (variant, "bfloat16"));
    let eight_bits = ["nt_block", "nt_row"].map(|variant| (variant, "float8_e4m3fn"));
    assert_eq!(series, [half[0], eight_bits[0], half[1], eight_bits[1]]);
    let row = |at: usize, dimensions| gemm[at].1.iter().find(|row| row.dimensions == dimensions).unwrap();
    assert_eq!(row(0, [1, 1, 64, 128]).microseconds, 3.0);
    // One-byte factors and a two-byte result; two scales of four bytes, or one per 128 of k, for 5 rows and 2 blocks of
    // columns.
    assert_eq!(row(3, [1, 2, 64, 128]).bytes, 2 * 128 + 128 * 64 + 2 * (2 * 64) + 2 * 4);
    assert_eq!(row(1, [1, 5, 192, 320]).bytes, 5 * 320 + 320 * 192 + 2 * (5 * 192) + 4 * 3 * (5 + 2));
    // 66 x 2 rows of 8 experts, at most 17 per expert; each of 2 devices has half of the intermediate size of 128. The
    // first GEMM has two thirds of 90 us, the second one third.
    let (up, down) = (row(2, [8, 17, 128, 256]), row(2, [8, 17, 256, 64]));
    assert_eq!((up.microseconds.round(), down.microseconds.round()), (60.0, 30.0));
    assert_eq!((up.flops, down.flops), (2 * 132 * 128 * 256, 2 * 132 * 256 * 64));
    let (series, attention) = &rows(&database, "attention")[0];
    assert_eq!((series.device.as_str(), attention[0].dimensions), ("l40s", [32, 1, 100, 128]));
    assert_eq!(series.variant, "varlen_fwd");
}

#[test]
fn another_database_is_merged() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["one.sqlite", "two.sqlite"].map(|name| folder.path().join(name));
    drop(Database::create(&paths[0]).unwrap());
    assert_eq!(import(&paths[0], &mut Database::create(&paths[1]).unwrap()).unwrap().rows, 0);
}

/// 4 operations per visible pair and element at 100 TFLOPS; a causal window of 2 of 4 tokens has 1 + 2 + 2 + 2 pairs.
#[test]
fn published_attention_becomes_rows() {
    let folder = tempfile::tempdir().unwrap();
    let (path, target) = (folder.path().join("attention.csv"), folder.path().join("own.sqlite"));
    let columns = "source,licence,software,device,operator,dtype,pass,causal,window,batch,heads,kv_heads,tokens,head_dim,tflops,us";
    let of = "Somebody 2024,MIT,cuDNN 9,h100-sxm-80gb,_cudnn_attention_forward,bf16";
    let text = format!("# Rates.\n{columns}\n{of},forward,0,0,2,8,2,4,64,100,\n{of},backward,1,2,2,8,2,4,64,,7.5\n");
    std::fs::write(&path, &text).unwrap();
    let mut database = Database::create(&target).unwrap();
    assert_eq!(import(&path, &mut database).unwrap().rows, 2);
    let (series, forward) = &rows(&database, "attention")[0];
    let flops = 4 * 16 * 4 * 4 * 64;
    assert_eq!((series.variant.as_str(), series.software.as_str()), ("_cudnn_attention_forward", "cuDNN 9"));
    assert_eq!((forward[0].dimensions, forward[0].flops), ([16, 4, 4, 64], flops));
    assert!((forward[0].microseconds - flops as f64 / 1e8).abs() < 1e-12);
    let backward = &rows(&database, "attention_backward")[0].1[0];
    assert_eq!((backward.flops, backward.microseconds), (10 * 16 * 7 * 64, 7.5));
    for (known, unknown) in [
        ("backward", "sideways"),
        ("backward,1", "backward,yes"),
        // A window without a causal mask, and both a rate and a time.
        ("backward,1", "backward,0"),
        ("64,,7.5", "64,100,7.5"),
    ] {
        std::fs::write(&path, text.replace(known, unknown)).unwrap();
        let error = import(&path, &mut database).unwrap_err().to_string();
        assert!(error.contains("line 4 is no measurement") && error.contains("hint:"), "{unknown}: {error}");
    }
}
