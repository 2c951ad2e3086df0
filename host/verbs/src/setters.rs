//! Setters of parameters: programs are compiled against later versions, which may have more of them.

/// A setter for each field that is named; `field?` is an [`Option`], whose value or the whole is set.
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
