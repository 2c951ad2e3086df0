//! Setters of parameters. Later versions may have more parameters, so programs do not build them as literals.

/// A setter for each named field. That of `field?`, an [`Option`], takes a value or the whole option.
macro_rules! setters {
    ($($field:ident: $type:ty,)* $(; $($optional:ident?: $value:ty,)*)?) => {
        $(
            #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
            #[must_use]
            pub const fn $field(mut self, $field: $type) -> Self {
                self.$field = $field;
                self
            }
        )*
        $($(
            #[doc = concat!("Sets [`", stringify!($optional), "`](field@Self::", stringify!($optional), ").")]
            #[must_use]
            pub fn $optional(mut self, $optional: impl Into<Option<$value>>) -> Self {
                self.$optional = $optional.into();
                self
            }
        )*)?
    };
}
pub(crate) use setters;
