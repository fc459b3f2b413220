"""Made by make_torch_returns.py from the stubs of torch: what its functions return, as
`name:letters` (`!`: tensor first)."""

METHODS = """
_addmm_activation:T! _autocast_to_full_precision:T _autocast_to_reduced_precision:T _coalesced_:T
_conj:T
_conj_physical:T _dimI:I _dimV:I _dtensor__new__:O! _indices:T _is_all_true:T _is_any_true:T
_is_view:B
_is_zerotensor:B _lazy_clone:T _make_subclass:O! _make_wrapper_subclass:O _neg_view:T
_nested_tensor_size:T
_nested_tensor_storage_offsets:T _nested_tensor_strides:T _nnz:I _philox_normal_:T!
_philox_uniform_:T!
_sparse_mask_projection:T! _to_dense:T _to_sparse:T _to_sparse_bsc:T _to_sparse_bsr:T
_to_sparse_csc:T
_to_sparse_csr:T _values:T _view_func_unsafe:O! abs:T abs_:T absolute:T absolute_:T acos:T acos_:T
acosh:T acosh_:T
add:T add_:T addbmm:T! addbmm_:T! addcdiv:T! addcdiv_:T! addcmul:T! addcmul_:T! addmm:T! addmm_:T!
addmv:T!
addmv_:T! addr:T! addr_:T! adjoint:T all:T allclose:B! amax:T amin:T aminmax:U angle:T any:T
apply_:T arccos:T
arccos_:T arccosh:T arccosh_:T arcsin:T arcsin_:T arcsinh:T arcsinh_:T arctan2:T! arctan2_:T!
arctan:T arctan_:T
arctanh:T arctanh_:T argmax:T argmin:T argsort:T argwhere:T as_strided:T as_strided_:T
as_strided_scatter:T!
as_subclass:O asin:T asin_:T asinh:T asinh_:T atan2:T! atan2_:T! atan:T atan_:T atanh:T atanh_:T
baddbmm:T!
baddbmm_:T! bernoulli:T bernoulli_:T bfloat16:T bincount:T bitwise_and:T bitwise_and_:T
bitwise_left_shift:T
bitwise_left_shift_:T bitwise_not:T bitwise_not_:T bitwise_or:T bitwise_or_:T bitwise_right_shift:T
bitwise_right_shift_:T bitwise_xor:T bitwise_xor_:T bmm:T! bool:T broadcast_to:T byte:T cauchy_:T
ccol_indices:T
ceil:T ceil_:T chalf:T char:T cholesky:T cholesky_inverse:T cholesky_solve:T! chunk:U clamp:T
clamp_:T clamp_max:T
clamp_max_:T clamp_min:T clamp_min_:T clip:T clip_:T clone:T coalesce:T col_indices:T conj:T
conj_physical:T
conj_physical_:T contiguous:T copy_:T! copysign:T copysign_:T corrcoef:T cos:T cos_:T cosh:T cosh_:T
count_nonzero:T
cov:T cpu:T cross:T! crow_indices:T cuda:T cummax:U cummin:U cumprod:T cumprod_:T cumsum:T cumsum_:T
data_ptr:I
deg2rad:T deg2rad_:T dense_dim:I dequantize:T det:T detach:T detach_:T diag:T diag_embed:T
diagflat:T diagonal:T
diagonal_scatter:T! diff:T digamma:T digamma_:T dim:I dist:T! div:T div_:T divide:T divide_:T dot:T!
double:T
dsplit:U element_size:I eq:T eq_:T equal:B! erf:T erf_:T erfc:T erfc_:T erfinv:T erfinv_:T exp2:T
exp2_:T exp:T
exp_:T expand:T expand_as:T! expm1:T expm1_:T exponential_:T fill_:T fill_diagonal_:T fix:T fix_:T
flatten:T flip:T
fliplr:T flipud:T float:T float_power:T float_power_:T floor:T floor_:T floor_divide:T
floor_divide_:T fmax:T!
fmin:T! fmod:T fmod_:T frac:T frac_:T frexp:U gather:T gcd:T! gcd_:T! ge:T ge_:T geometric_:T
geqrf:U ger:T!
get_device:I greater:T greater_:T greater_equal:T greater_equal_:T gt:T gt_:T half:T hardshrink:T
hash_tensor:T
heaviside:T! heaviside_:T! histc:T histogram:U hsplit:U hypot:T! hypot_:T! i0:T i0_:T igamma:T!
igamma_:T!
igammac:T! igammac_:T! index_add:T index_add_:T index_copy:T index_copy_:T index_fill:T
index_fill_:T index_put:T
index_put_:T index_reduce:T index_reduce_:T index_select:T indices:T inner:T! int:T int_repr:T
inverse:T
is_coalesced:B is_complex:B is_conj:B is_contiguous:B is_distributed:B is_floating_point:B
is_inference:B is_neg:B
is_nonzero:B is_pinned:B is_same_size:B! is_set_to:B! is_signed:B isclose:T! isfinite:T isinf:T
isnan:T isneginf:T
isposinf:T isreal:T istft:T item:N kron:T! kthvalue:U lcm:T! lcm_:T! ldexp:T! ldexp_:T! le:T le_:T
lerp:T! lerp_:T!
less:T less_:T less_equal:T less_equal_:T lgamma:T lgamma_:T log10:T log10_:T log1p:T log1p_:T
log2:T log2_:T log:T
log_:T log_normal_:T log_softmax:T logaddexp2:T! logaddexp:T! logcumsumexp:T logdet:T logical_and:T!
logical_and_:T!
logical_not:T logical_not_:T logical_or:T! logical_or_:T! logical_xor:T! logical_xor_:T! logit:T
logit_:T
logsumexp:T long:T lt:T lt_:T lu_solve:T! map2_:T! map_:T! masked_fill:T! masked_fill_:T!
masked_scatter:T!
masked_scatter_:T! masked_select:T! matmul:T! matrix_exp:T matrix_power:T max:TU maximum:T! mean:T
median:TU min:TU
minimum:T! mm:T! mode:U moveaxis:T movedim:T msort:T mul:T mul_:T multinomial:T multiply:T
multiply_:T mv:T!
mvlgamma:T mvlgamma_:T nan_to_num:T nan_to_num_:T nanmean:T nanmedian:TU nanquantile:T nansum:T
narrow:T
narrow_copy:T ndimension:I ne:T ne_:T neg:T neg_:T negative:T negative_:T nelement:I new:T
new_empty:T
new_empty_strided:T new_full:T new_ones:T new_tensor:T new_zeros:T nextafter:T! nextafter_:T!
nonzero:TU
nonzero_static:T normal_:T not_equal:T not_equal_:T numel:I numpy:O orgqr:T! ormqr:T! outer:T!
permute:T
pin_memory:T pinverse:T polygamma:T polygamma_:T positive:T pow:T pow_:T prelu:T! prod:T put:T!
put_:T!
q_per_channel_axis:I q_per_channel_scales:T q_per_channel_zero_points:T q_scale:F q_zero_point:I
qr:U qscheme:O
quantile:T rad2deg:T rad2deg_:T random_:T ravel:T reciprocal:T reciprocal_:T record_stream:O relu:T
relu_:T
remainder:T remainder_:T renorm:T renorm_:T repeat:T repeat_interleave:T requires_grad_:T reshape:T
reshape_as:T!
resize_:T resize_as_:T! resize_as_sparse_:T! resolve_conj:T resolve_neg:T retain_grad:O roll:T
rot90:T round:T
round_:T row_indices:T rsqrt:T rsqrt_:T scatter:T scatter_:T scatter_add:T scatter_add_:T
scatter_reduce:T
scatter_reduce_:T select:T select_scatter:T! set_:T sgn:T sgn_:T short:T sigmoid:T sigmoid_:T sign:T
sign_:T
signbit:T sin:T sin_:T sinc:T sinc_:T sinh:T sinh_:T size:IS slice_inverse:T! slice_scatter:T!
slogdet:U smm:T!
softmax:T sort:U sparse_dim:I sparse_mask:T! sparse_resize_:T sparse_resize_and_clear_:T split:O
split_with_sizes:U
sqrt:T sqrt_:T square:T square_:T squeeze:T squeeze_:T sspaddmm:T! std:T storage_offset:O
storage_type:O stride:IO
sub:T sub_:T subtract:T subtract_:T sum:T sum_to_size:T svd:U swapaxes:T swapaxes_:T swapdims:T
swapdims_:T t:T t_:T
take:T! take_along_dim:T! tan:T tan_:T tanh:T tanh_:T tensor_split:U tile:T to:T to_dense:T
to_mkldnn:T
to_padded_tensor:T to_sparse:T to_sparse_bsc:T to_sparse_bsr:T to_sparse_csc:T to_sparse_csr:T
tolist:O topk:U
trace:T transpose:T transpose_:T triangular_solve:U! tril:T tril_:T triu:T triu_:T true_divide:T
true_divide_:T
trunc:T trunc_:T type:OT type_as:T! unbind:U unflatten:T unfold:T uniform_:T unsafe_chunk:U
unsafe_split:U
unsafe_split_with_sizes:U unsqueeze:T unsqueeze_:T untyped_storage:O values:T var:T vdot:T! view:T
view_as:T!
vsplit:U where:T! xlogy:T xlogy_:T xpu:T zero_:T
"""

FUNCTIONS = """
_adaptive_avg_pool2d:T! _adaptive_avg_pool3d:T! _add_batch_dim:T! _add_relu:T! _add_relu_:T!
_addmm_activation:T!
_aminmax:U! _amp_foreach_non_finite_check_and_unscale_:O _amp_update_scale_:T! _assert_async:O!
_assert_scalar:O
_assert_tensor_metadata:O! _batch_norm_impl_index:U! _cast_Byte:T! _cast_Char:T! _cast_Double:T!
_cast_Float:T!
_cast_Half:T! _cast_Int:T! _cast_Long:T! _cast_Short:T! _choose_qparams_per_tensor:O! _chunk_cat:T
_coalesce:T!
_compute_linear_combination:T! _conj:T! _conj_copy:T! _conj_physical:T!
_convert_indices_from_coo_to_csr:T!
_convert_indices_from_csr_to_coo:T! _convert_weight_to_int4pack:T!
_convert_weight_to_int4pack_for_cpu:T!
_convolution:T! _convolution_mode:T! _copy_from:T! _copy_from_and_resize:T! _cslt_compress:T!
_cslt_sparse_mm:T!
_cslt_sparse_mm_search:I! _ctc_loss:U! _cudnn_ctc_loss:U! _cudnn_init_dropout_state:T _cudnn_rnn:U!
_cudnn_rnn_flatten_weight:T _cufft_clear_plan_cache:O _cufft_get_plan_cache_max_size:I
_cufft_get_plan_cache_size:I
_cufft_set_plan_cache_max_size:O _cummax_helper:O! _cummin_helper:O! _debug_has_internal_overlap:I!
_dim_arange:T!
_dirichlet_grad:T! _disable_functionalization:O _dyn_quant_matmul_4bit:T!
_dyn_quant_pack_4bit_weight:T!
_efficientzerotensor:T _embedding_bag:U! _embedding_bag_forward_only:U! _empty_affine_quantized:T
_empty_per_channel_affine_quantized:T _enable_functionalization:O _euclidean_dist:T!
_fake_quantize_learnable_per_channel_affine:T! _fake_quantize_learnable_per_tensor_affine:T!
_fake_quantize_per_tensor_affine_cachemask_tensor_qparams:U! _fft_c2c:T! _fft_c2r:T! _fft_r2c:T!
_fill_mem_eff_dropout_mask_:T! _flash_attention_forward_no_dropout_inplace:T _foobar:T!
_foreach_abs:U
_foreach_abs_:O _foreach_acos:U _foreach_acos_:O _foreach_add:U _foreach_add_:O _foreach_addcdiv:U
_foreach_addcdiv_:O _foreach_addcmul:U _foreach_addcmul_:O _foreach_asin:U _foreach_asin_:O
_foreach_atan:U
_foreach_atan_:O _foreach_ceil:U _foreach_ceil_:O _foreach_clamp_max:U _foreach_clamp_max_:O
_foreach_clamp_min:U
_foreach_clamp_min_:O _foreach_clone:U _foreach_copy_:O _foreach_cos:U _foreach_cos_:O
_foreach_cosh:U
_foreach_cosh_:O _foreach_div:U _foreach_div_:O _foreach_erf:U _foreach_erf_:O _foreach_erfc:U
_foreach_erfc_:O
_foreach_exp:U _foreach_exp_:O _foreach_expm1:U _foreach_expm1_:O _foreach_floor:U _foreach_floor_:O
_foreach_frac:U
_foreach_frac_:O _foreach_lerp:U _foreach_lerp_:O _foreach_lgamma:U _foreach_lgamma_:O
_foreach_log10:U
_foreach_log10_:O _foreach_log1p:U _foreach_log1p_:O _foreach_log2:U _foreach_log2_:O _foreach_log:U
_foreach_log_:O
_foreach_max:U _foreach_maximum:U _foreach_maximum_:O _foreach_minimum:U _foreach_minimum_:O
_foreach_mm:U
_foreach_mul:U _foreach_mul_:O _foreach_neg:U _foreach_neg_:O _foreach_norm:U _foreach_pow:U
_foreach_pow_:O
_foreach_powsum:U _foreach_reciprocal:U _foreach_reciprocal_:O _foreach_round:U _foreach_round_:O
_foreach_rsqrt:U
_foreach_rsqrt_:O _foreach_sigmoid:U _foreach_sigmoid_:O _foreach_sign:U _foreach_sign_:O
_foreach_sin:U
_foreach_sin_:O _foreach_sinh:U _foreach_sinh_:O _foreach_sqrt:U _foreach_sqrt_:O _foreach_sub:U
_foreach_sub_:O
_foreach_tan:U _foreach_tan_:O _foreach_tanh:U _foreach_tanh_:O _foreach_trunc:U _foreach_trunc_:O
_foreach_zero_:O
_from_functional_tensor:T! _functional_assert_async:T! _functional_assert_scalar:T
_functional_sym_constrain_range:T
_functional_sym_constrain_range_for_size:T _functionalize_apply_view_metas:T!
_functionalize_are_all_mutations_hidden_from_autograd:B!
_functionalize_are_all_mutations_under_no_grad_or_inference_mode:B! _functionalize_commit_update:O!
_functionalize_has_metadata_mutation:B! _functionalize_inductor_storage_resized_counter:I!
_functionalize_is_symbolic:B! _functionalize_mark_mutation_hidden_from_autograd:O!
_functionalize_mark_storage_changed:B! _functionalize_mutation_counter:I! _functionalize_replace:O!
_functionalize_storage_changed_counter:I! _functionalize_sync:O! _functionalize_unsafe_set:O!
_functionalize_was_inductor_storage_resized:B! _functionalize_was_storage_changed:B!
_fused_adagrad_:O
_fused_adam_:O _fused_adamw_:O _fused_dropout:U! _fused_moving_avg_obs_fq_helper:U!
_fused_rms_norm:U!
_fused_sdp_choice:I! _fused_sgd_:O _fw_primal_copy:T! _grid_sampler_2d_cpu_fallback:T!
_grouped_mm:T!
_has_compatible_shallow_copy_type:B! _histogramdd_bin_edges:U! _histogramdd_from_bin_cts:T!
_histogramdd_from_bin_tensors:T! _index_put_impl_:T! _indices_copy:T! _int_mm:T! _is_all_true:T!
_is_any_true:T!
_is_functional_tensor:B! _is_functional_tensor_base:B! _is_zerotensor:B! _lazy_clone:T!
_linalg_check_errors:O!
_linalg_det:U! _linalg_eigh:U! _linalg_slogdet:U! _linalg_solve_ex:U! _linalg_svd:U! _log_softmax:T!
_log_softmax_backward_data:T! _logcumsumexp:T! _lstm_mps:U! _lu_with_info:U! _make_dep_token:T
_make_dual:T!
_make_dual_copy:T! _make_per_channel_quantized_tensor:T! _make_per_tensor_quantized_tensor:T!
_masked_scale:T!
_masked_softmax:T! _mixed_dtypes_linear:T! _mkldnn_reshape:T! _mkldnn_transpose:T!
_mkldnn_transpose_:T!
_mps_convolution:T! _mps_convolution_transpose:T! _native_batch_norm_legit:U!
_native_batch_norm_legit_no_training:U! _native_multi_head_attention:U! _neg_view:T!
_neg_view_copy:T!
_nested_compute_contiguous_strides_offsets:U! _nested_from_padded:T!
_nested_from_padded_and_nested_example:T!
_nested_from_padded_tensor:T! _nested_get_jagged_dummy:T! _nested_get_lengths:T!
_nested_get_max_seqlen:T!
_nested_get_min_seqlen:T! _nested_get_offsets:T! _nested_get_ragged_idx:I! _nested_get_values:T!
_nested_get_values_copy:T! _nested_tensor_from_mask:T! _nested_tensor_from_mask_left_aligned:B!
_nested_tensor_from_tensor_list:T _nested_tensor_softmax_with_shape:T! _nested_view_from_buffer:T!
_nested_view_from_buffer_copy:T! _nested_view_from_jagged:T! _nested_view_from_jagged_copy:T!
_nnpack_available:B
_nnpack_spatial_convolution:T! _pack_padded_sequence:U! _pad_packed_sequence:U!
_philox_key_fold_in:T!
_philox_key_split:T! _philox_normal_:T! _philox_uniform_:T! _pin_memory:T! _prelu_kernel:T! _print:O
_propagate_xla_data:O! _remove_batch_dim:T! _reshape_alias_copy:T! _reshape_from_tensor:T!
_resize_output_:T!
_rowwise_prune:U! _safe_softmax:T! _sample_dirichlet:T! _saturate_weight_to_fp16:T!
_scaled_dot_product_attention_math:U! _scaled_dot_product_attention_math_for_mps:U!
_scaled_dot_product_cudnn_attention:U! _scaled_dot_product_efficient_attention:U!
_scaled_dot_product_flash_attention:U! _scaled_dot_product_flash_attention_for_cpu:U!
_scaled_grouped_mm:T!
_scaled_grouped_mm_v2:T! _scaled_mm:T! _scaled_mm_v2:T! _shape_as_tensor:T! _sobol_engine_draw:U!
_sobol_engine_ff_:T! _sobol_engine_initialize_state_:T! _sobol_engine_scramble_:T! _softmax:T!
_softmax_backward_data:T! _sparse_broadcast_to:T! _sparse_broadcast_to_copy:T! _sparse_csr_prod:T!
_sparse_csr_sum:T! _sparse_log_softmax_backward_data:T! _sparse_semi_structured_addmm:T!
_sparse_semi_structured_apply:U! _sparse_semi_structured_apply_dense:T!
_sparse_semi_structured_linear:T!
_sparse_semi_structured_mm:T! _sparse_semi_structured_tile:U! _sparse_softmax_backward_data:T!
_sparse_sparse_matmul:T! _sparse_sum:T! _stack:T _standard_gamma:T! _standard_gamma_grad:T! _sync:O!
_test_autograd_multiple_dispatch:T! _test_autograd_multiple_dispatch_view:T!
_test_autograd_multiple_dispatch_view_copy:T! _test_check_tensor:T! _test_functorch_fallback:T!
_test_parallel_materialize:T! _test_serialization_subcmul:T! _to_cpu:U _to_functional_tensor:T!
_to_sparse_semi_structured:U! _transform_bias_rescale_qkv:U! _transformer_encoder_layer_fwd:T!
_trilinear:T!
_triton_multi_head_attention:T! _triton_scaled_dot_attention:T! _unique2:U! _unique:U!
_unpack_dual:U!
_unsafe_index:T! _unsafe_index_put:T! _unsafe_masked_index:T! _unsafe_masked_index_put_accumulate:T!
_use_cudnn_ctc_loss:B! _use_cudnn_rnn_flatten_weight:B _use_miopen_ctc_loss:B!
_validate_compressed_sparse_indices:O
_validate_sparse_bsc_tensor_args:O! _validate_sparse_bsr_tensor_args:O!
_validate_sparse_compressed_tensor_args:O!
_validate_sparse_coo_tensor_args:O! _validate_sparse_csc_tensor_args:O!
_validate_sparse_csr_tensor_args:O!
_values_copy:T! _weight_int4pack_mm:T! _weight_int4pack_mm_for_cpu:T!
_weight_int4pack_mm_with_scales_and_zeros:T!
_weight_int8pack_mm:T! _weight_norm:T! _weight_norm_interface:U! _wrapped_linear_prepack:T!
_wrapped_quantized_linear_prepacked:T! abs:T! abs_:T! absolute:T! acos:T! acos_:T! acosh:T!
acosh_:T!
adaptive_avg_pool1d:T! adaptive_max_pool1d:U! add:T addbmm:T addcdiv:T! addcmul:T! addmm:T addmv:T
addmv_:T addr:T
adjoint:T! affine_grid_generator:T! alias_copy:T! all:T! allclose:B! alpha_dropout:T!
alpha_dropout_:T! amax:T!
amin:T! aminmax:U! angle:T! any:T! arange:T arccos:T! arccos_:T! arccosh:T! arccosh_:T! arcsin:T!
arcsin_:T!
arcsinh:T! arcsinh_:T! arctan2:T! arctan:T! arctan_:T! arctanh:T! arctanh_:T! argmax:T! argmin:T!
argsort:T!
argwhere:T! as_strided:T! as_strided_:T! as_strided_copy:T! as_strided_scatter:T! as_tensor:T
asarray:T asin:T!
asin_:T! asinh:T! asinh_:T! atan2:T! atan:T! atan_:T! atanh:T! atanh_:T! avg_pool1d:T! baddbmm:T
bartlett_window:T
batch_norm:T! batch_norm_backward_elemt:T! batch_norm_backward_reduce:U! batch_norm_elemt:T!
batch_norm_gather_stats:U! batch_norm_gather_stats_with_counts:U! batch_norm_stats:U!
batch_norm_update_stats:U!
bernoulli:T! bilinear:T! binary_cross_entropy_with_logits:T! bincount:T! binomial:T! bitwise_and:T
bitwise_left_shift:T bitwise_not:T! bitwise_or:T bitwise_right_shift:T bitwise_xor:T
blackman_window:T bmm:T!
broadcast_to:T! bucketize:T can_cast:B cat:T ccol_indices_copy:T! ceil:T! ceil_:T! celu:T! celu_:T!
channel_shuffle:T! cholesky:T! cholesky_inverse:T! cholesky_solve:T! choose_qparams_optimized:U!
chunk:U! clamp:T!
clamp_:T! clamp_max:T! clamp_max_:T! clamp_min:T! clamp_min_:T! clip:T! clip_:T! clone:T!
col_indices_copy:T!
column_stack:T combinations:T! complex:T! concat:T concatenate:T conj:T! conj_physical:T!
conj_physical_:T!
constant_pad_nd:T! conv1d:T! conv2d:T! conv3d:T! conv_tbc:T! conv_transpose1d:T! conv_transpose2d:T!
conv_transpose3d:T! convolution:T! copysign:T! corrcoef:T! cos:T! cos_:T! cosh:T! cosh_:T!
cosine_embedding_loss:T!
cosine_similarity:T! count_nonzero:T! cov:T! cross:T! crow_indices_copy:T! ctc_loss:T!
cudnn_affine_grid_generator:T! cudnn_batch_norm:U! cudnn_convolution:T!
cudnn_convolution_add_relu:T!
cudnn_convolution_relu:T! cudnn_convolution_transpose:T! cudnn_grid_sampler:T!
cudnn_is_acceptable:B! cummax:U!
cummin:U! cumprod:T! cumsum:T! cumulative_trapezoid:T! deg2rad:T! deg2rad_:T! dequantize:TU det:T!
detach:T!
detach_:T! detach_copy:T! diag:T! diag_embed:T! diagflat:T! diagonal:T! diagonal_copy:T!
diagonal_scatter:T! diff:T!
digamma:T! dist:T! div:T divide:T! dot:T! dropout:T! dropout_:T! dsmm:T! dsplit:U! dstack:T
embedding:T!
embedding_bag:U! embedding_renorm_:T! empty:T empty_like:T! empty_permuted:T empty_quantized:T
empty_strided:T eq:T!
equal:B! erf:T! erf_:T! erfc:T! erfc_:T! erfinv:T! exp2:T! exp2_:T! exp:T! exp_:T! expand_copy:T!
expm1:T! expm1_:T!
eye:T fake_quantize_per_channel_affine:T! fake_quantize_per_tensor_affine:T!
fbgemm_linear_fp16_weight:T!
fbgemm_linear_fp16_weight_fp32_activation:T! fbgemm_linear_int8_weight:T!
fbgemm_linear_int8_weight_fp32_activation:T! fbgemm_linear_quantize_weight:U!
fbgemm_pack_gemm_matrix_fp16:T!
fbgemm_pack_quantized_matrix:T! feature_alpha_dropout:T! feature_alpha_dropout_:T!
feature_dropout:T!
feature_dropout_:T! fill:T! fill_:T! fix:T! fix_:T! flatten:T! flip:T! fliplr:T! flipud:T!
float_power:T floor:T!
floor_:T! floor_divide:T fmax:T! fmin:T! fmod:T! frac:T! frac_:T! frexp:U! frobenius_norm:T!
from_file:T
from_numpy:T frombuffer:T full:T full_like:T! fused_moving_avg_obs_fake_quant:T! gather:T! gcd:T!
gcd_:T! ge:T!
geqrf:U! ger:T! get_default_dtype:O get_num_interop_threads:I get_num_threads:I gradient:U!
greater:T!
greater_equal:T! grid_sampler:T! grid_sampler_2d:T! grid_sampler_3d:T! group_norm:T! gru:U!
gru_cell:T! gt:T!
hamming_window:T hann_window:T hardshrink:T! hash_tensor:T! heaviside:T! hinge_embedding_loss:T!
histc:T!
histogram:U! histogramdd:U! hsmm:T! hsplit:U! hspmm:T! hstack:T hypot:T! i0:T! i0_:T! igamma:T!
igammac:T! imag:T!
index_add:T! index_copy:T! index_fill:T! index_put:T! index_put_:T! index_reduce:T! index_select:T!
indices_copy:T!
init_num_threads:O inner:T! instance_norm:T! int_repr:T! inverse:T! is_complex:B! is_conj:B!
is_distributed:B!
is_floating_point:B! is_grad_enabled:B is_inference:B! is_inference_mode_enabled:B is_neg:B!
is_nonzero:B!
is_same_size:B! is_signed:B! is_vulkan_available:B isclose:T! isfinite:T! isin:T isinf:T! isnan:T!
isneginf:T!
isposinf:T! isreal:T! istft:T! kaiser_window:T kl_div:T! kron:T! kthvalue:U! layer_norm:T! lcm:T!
lcm_:T! ldexp:T!
ldexp_:T! le:T! lerp:T! less:T! less_equal:T! lgamma:T! linspace:T log10:T! log10_:T! log1p:T!
log1p_:T! log2:T!
log2_:T! log:T! log_:T! log_softmax:T! logaddexp2:T! logaddexp:T! logcumsumexp:T! logdet:T!
logical_and:T!
logical_not:T! logical_or:T! logical_xor:T! logit:T! logit_:T! logspace:T logsumexp:T! lstm:U!
lstm_cell:U! lt:T!
lu_solve:T! lu_unpack:U! margin_ranking_loss:T! masked_fill:T! masked_scatter:T! masked_select:T!
matmul:T!
matrix_exp:T! matrix_power:T! max:TU! max_pool1d:T! max_pool1d_with_indices:U! max_pool2d:T!
max_pool3d:T!
maximum:T! mean:T! median:TU! min:TU! minimum:T! miopen_batch_norm:U! miopen_convolution:T!
miopen_convolution_add_relu:T! miopen_convolution_relu:T! miopen_convolution_transpose:T!
miopen_ctc_loss:U!
miopen_depthwise_convolution:T! miopen_rnn:U! mkldnn_adaptive_avg_pool2d:T! mkldnn_convolution:T!
mkldnn_linear_backward_weights:U! mkldnn_max_pool2d:T! mkldnn_max_pool3d:T! mkldnn_rnn_layer:U!
mm:T! mode:U!
moveaxis:T! movedim:T! msort:T! mul:T multinomial:T! multiply:T! mv:T! mvlgamma:T! nan_to_num:T!
nan_to_num_:T!
nanmean:T! nanmedian:TU! nanquantile:T! nansum:T! narrow:T! narrow_copy:T! native_batch_norm:U!
native_channel_shuffle:T! native_dropout:U! native_group_norm:U! native_layer_norm:U! native_norm:T!
ne:T! neg:T!
neg_:T! negative:T! negative_:T! nextafter:T! nonzero:TU! nonzero_static:T! norm_except_dim:T!
normal:T not_equal:T!
nuclear_norm:T! numel:I! ones:T ones_like:T! orgqr:T! ormqr:T! outer:T! pairwise_distance:T!
pdist:T! permute:T!
permute_copy:T! pinverse:T! pixel_shuffle:T! pixel_unshuffle:T! poisson:T! poisson_nll_loss:T!
polar:T! polygamma:T
positive:T! pow:T prelu:T! prod:T! promote_types:O put:T! q_per_channel_axis:I!
q_per_channel_scales:T!
q_per_channel_zero_points:T! q_scale:F! q_zero_point:I! qr:U! quantile:T! quantize_per_channel:T!
quantize_per_tensor:TU quantize_per_tensor_dynamic:T! quantized_batch_norm:T! quantized_gru_cell:T!
quantized_lstm_cell:U! quantized_max_pool1d:T! quantized_max_pool2d:T! quantized_max_pool3d:T!
quantized_rnn_relu_cell:T! quantized_rnn_tanh_cell:T! rad2deg:T! rad2deg_:T! rand:T rand_like:T!
randint:T
randint_like:T! randn:T randn_like:T! randperm:T range:T ravel:T! real:T! reciprocal:T!
reciprocal_:T! relu:T!
relu_:T! remainder:T renorm:T! repeat_interleave:T! reshape:T! resize_as_:T! resize_as_sparse_:T!
resolve_conj:T!
resolve_neg:T! result_type:O rms_norm:T! rnn_relu:U! rnn_relu_cell:T! rnn_tanh:U! rnn_tanh_cell:T!
roll:T! rot90:T!
round:T! round_:T! row_indices_copy:T! row_stack:T rrelu:T! rrelu_:T! rsqrt:T! rsqrt_:T! rsub:T!
saddmm:T!
scalar_tensor:T scatter:T! scatter_add:T! scatter_reduce:T! searchsorted:T! segment_reduce:T!
select:T!
select_copy:T! select_scatter:T! selu:T! selu_:T! set_flush_denormal:B set_num_interop_threads:O
set_num_threads:O
sgn:T! sigmoid:T! sigmoid_:T! sign:T! signbit:T! sin:T! sin_:T! sinc:T! sinc_:T! sinh:T! sinh_:T!
slice_copy:T!
slice_inverse:T! slice_scatter:T! slogdet:U! smm:T! softmax:T! sort:U! sparse_bsc_tensor:T
sparse_bsr_tensor:T
sparse_compressed_tensor:T sparse_coo_tensor:T! sparse_csc_tensor:T sparse_csr_tensor:T
split_copy:O!
split_with_sizes:U! split_with_sizes_copy:O! spmm:T! sqrt:T! sqrt_:T! square:T! square_:T!
squeeze:T!
squeeze_copy:T! sspaddmm:T stack:T std:T! std_mean:U! sub:T subtract:T! sum:T! svd:U! swapaxes:T!
swapdims:T!
sym_constrain_range:O sym_constrain_range_for_size:O t:T! t_copy:T! take:T! take_along_dim:T! tan:T!
tan_:T! tanh:T!
tanh_:T! tensor:T tensor_split:U! threshold:T! threshold_:T! tile:T! topk:U! trace:T! transpose:T!
transpose_copy:T!
trapezoid:T! trapz:T! triangular_solve:U! tril:T! tril_indices:T triplet_margin_loss:T! triu:T!
triu_indices:T
true_divide:T trunc:T! trunc_:T! unbind:U! unbind_copy:O! unflatten:T! unfold_copy:T! unique_dim:U!
unsafe_chunk:U!
unsafe_split:U! unsafe_split_with_sizes:U! unsqueeze:T! unsqueeze_copy:T! values_copy:T! vander:T!
var:T!
var_mean:U! vdot:T! view_as_complex:T! view_as_complex_copy:T! view_as_real:T! view_as_real_copy:T!
view_copy:T!
vsplit:U! vstack:T where:TU! xlogy:T xlogy_:T! zero_:T! zeros:T zeros_like:T!
"""

FUNCTIONAL = """
_canonical_mask:T adaptive_avg_pool2d:T! adaptive_avg_pool3d:T! adaptive_max_pool1d:TU!
adaptive_max_pool1d_with_indices:U! adaptive_max_pool2d:TU! adaptive_max_pool2d_with_indices:U!
adaptive_max_pool3d:TU! adaptive_max_pool3d_with_indices:U! affine_grid:T! alpha_dropout:T!
assert_int_or_pair:O
batch_norm:T! binary_cross_entropy:T! binary_cross_entropy_with_logits:T! celu:T!
cosine_embedding_loss:T!
cross_entropy:T! ctc_loss:T! dropout1d:T! dropout2d:T! dropout3d:T! dropout:T! elu:T! embedding:T!
embedding_bag:T!
feature_alpha_dropout:T! fold:T! fractional_max_pool2d:TU! fractional_max_pool2d_with_indices:U!
fractional_max_pool3d:TU! fractional_max_pool3d_with_indices:U! gaussian_nll_loss:T! glu:T!
grid_sample:T!
group_norm:T! grouped_mm:T! gumbel_softmax:T! hardsigmoid:T! hardswish:T! hardtanh:T!
hinge_embedding_loss:T!
huber_loss:T! instance_norm:T! interpolate:T! kl_div:T! l1_loss:T! layer_norm:T! leaky_relu:T!
linear_cross_entropy:T! local_response_norm:T! log_softmax:T! lp_pool1d:T! lp_pool2d:T! lp_pool3d:T!
margin_ranking_loss:T! max_pool1d:TU! max_pool1d_with_indices:U! max_pool2d:TU!
max_pool2d_with_indices:U!
max_pool3d:TU! max_pool3d_with_indices:U! max_unpool1d:T! max_unpool2d:T! max_unpool3d:T! mish:T!
mse_loss:T!
multi_head_attention_forward:U! multi_margin_loss:T! multilabel_margin_loss:T!
multilabel_soft_margin_loss:T!
nll_loss:T! normalize:T! pad:T! poisson_nll_loss:T! relu6:T! relu:T! rms_norm:T! rrelu:T!
scaled_grouped_mm:T!
scaled_mm:T! selu:T! sigmoid:T! silu:T! smooth_l1_loss:T! soft_margin_loss:T! softmax:T! softmin:T!
softsign:T
tanh:T tanhshrink:T threshold:T! triplet_margin_loss:T! triplet_margin_with_distance_loss:T!
unfold:T! upsample:T
upsample_bilinear:T upsample_nearest:T
"""
